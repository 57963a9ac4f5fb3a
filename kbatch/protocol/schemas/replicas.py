"""Partitions, replicas, log directories and the nodes of a cluster. `kbatch.protocol.schema` explains the tables."""

REPLICAS_TABLES = """
CreatePartitionsRequest: API key 37, versions 0-3, flexible 2+

field           type     versions  null  meaning
topics          []CreatePartitionsTopic  0+  -  One entry per topic.
  name          string   0+        -     Name of the topic.
  count         int32    0+        -     Number of partitions after the change.
  assignments   []CreatePartitionsAssignment  0+  0+  Brokers of each new partition, if chosen by hand; null for the
                                         broker's choice.
    broker_ids  []int32  0+        -     Brokers of the replicas; the first is the preferred leader.
timeout_ms      int32    0+        -     Time in ms that the broker may take.
validate_only   bool     0+        -     Whether to check the request without changing anything.

CreatePartitionsResponse: API key 37, versions 0-3, flexible 2+

field             type    versions  null  default  meaning
throttle_time_ms  int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
results           []CreatePartitionsTopicResult  0+  -  -  One entry per topic.
  name            string  0+        -     -        Name of the topic.
  error_code      int16   0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    null     Text of the error; null if there is none.

ElectLeadersRequest: API key 43, versions 0-2, flexible 2+

field             type               versions  null  default  meaning
election_type     int8               1+        -     -        Kind of the election: 0 preferred leader, 1 unclean.
topic_partitions  []TopicPartitions  0+        0+    -        One entry per partition.
  topic           string             0+        -     -        Name of the topic.
  partitions      []int32            0+        -     -        Numbers of the partitions.
timeout_ms        int32              0+        -     60000    Time in ms that the broker may take.

ElectLeadersResponse: API key 43, versions 0-2, flexible 2+

field                     type               versions  null  meaning
throttle_time_ms          int32              0+        -     Time in ms that the broker delays the client because of a
                                                             quota.
error_code                int16              1+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                             none.
replica_election_results  []ReplicaElectionResult  0+  -     One entry per topic.
  topic                   string             0+        -     Name of the topic.
  partition_result        []PartitionResult  0+        -     One entry per partition.
    partition_id          int32              0+        -     Number of the partition.
    error_code            int16              0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    error_message         string             0+        0+    Text of the error; null if there is none.

AlterPartitionReassignmentsRequest: API key 45, versions 0-1, flexible 0+

field                type                 versions  null  default  meaning
timeout_ms           int32                0+        -     60000    Time in ms that the broker may take.
allow_replication_factor_change  bool     1+        -     true     Whether the number of replicas may change.
topics               []ReassignableTopic  0+        -     -        One entry per topic.
  name               string               0+        -     -        Name of the topic.
  partitions         []ReassignablePartition  0+    -     -        One entry per partition.
    partition_index  int32                0+        -     -        Number of the partition.
    replicas         []int32              0+        0+    null     Brokers of the replicas; null to cancel a
                                                                   reassignment.

AlterPartitionReassignmentsResponse: API key 45, versions 0-1, flexible 0+

field                type    versions  null  default  skip  meaning
throttle_time_ms     int32   0+        -     -        -     Time in ms that the broker delays the client because of a
                                                            quota.
allow_replication_factor_change  bool  1+  -  true    yes   Whether the number of replicas was allowed to change.
error_code           int16   0+        -     -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                            none.
error_message        string  0+        0+    -        -     Text of the error; null if there is none.
responses            []ReassignableTopicResponse  0+  -  -  -  One entry per topic.
  name               string  0+        -     -        -     Name of the topic.
  partitions         []ReassignablePartitionResponse  0+  -  -  -  One entry per partition.
    partition_index  int32   0+        -     -        -     Number of the partition.
    error_code       int16   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    error_message    string  0+        0+    -        -     Text of the error; null if there is none.

ListPartitionReassignmentsRequest: API key 46, versions 0, flexible 0+

field                type     versions  null  default  meaning
timeout_ms           int32    0+        -     60000    Time in ms that the broker may take.
topics               []ListPartitionReassignmentsTopics  0+  0+  null  Topics to describe; null for all.
  name               string   0+        -     -        Name of the topic.
  partition_indexes  []int32  0+        -     -        Numbers of the partitions.

ListPartitionReassignmentsResponse: API key 46, versions 0, flexible 0+

field                  type     versions  null  meaning
throttle_time_ms       int32    0+        -     Time in ms that the broker delays the client because of a quota.
error_code             int16    0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message          string   0+        0+    Text of the error; null if there is none.
topics                 []OngoingTopicReassignment  0+  -  One entry per topic.
  name                 string   0+        -     Name of the topic.
  partitions           []OngoingPartitionReassignment  0+  -  One entry per partition.
    partition_index    int32    0+        -     Number of the partition.
    replicas           []int32  0+        -     Brokers of the replicas.
    adding_replicas    []int32  0+        -     Brokers that become replicas.
    removing_replicas  []int32  0+        -     Brokers that stop being replicas.

AlterReplicaLogDirsRequest: API key 34, versions 0-2, flexible 2+

field           type                  versions  meaning
dirs            []AlterReplicaLogDir  0+        Log directories, each with its new partitions.
  path          string                0+        Path of the log directory.
  topics        []AlterReplicaLogDirTopic  0+   Partitions that move to the directory, one entry per topic.
    name        string                0+        Name of the topic.
    partitions  []int32               0+        Numbers of the partitions.

AlterReplicaLogDirsResponse: API key 34, versions 0-2, flexible 2+

field                type    versions  meaning
throttle_time_ms     int32   0+        Time in ms that the broker delays the client because of a quota.
results              []AlterReplicaLogDirTopicResult  0+  One entry per topic.
  topic_name         string  0+        Name of the topic.
  partitions         []AlterReplicaLogDirPartitionResult  0+  One entry per partition.
    partition_index  int32   0+        Number of the partition.
    error_code       int16   0+        Error of this entry as a `kbatch.ErrorCode`; 0 if none.

DescribeLogDirsRequest: API key 35, versions 0-5, flexible 2+

field         type     versions  null  meaning
topics        []DescribableLogDirTopic  0+  0+  Topics to describe; null for all.
  topic       string   0+        -     Name of the topic.
  partitions  []int32  0+        -     Numbers of the partitions.

DescribeLogDirsResponse: API key 35, versions 0-5, flexible 2+

field                  type                    versions  default  skip  meaning
throttle_time_ms       int32                   0+        -        -     Time in ms that the broker delays the client
                                                                        because of a quota.
error_code             int16                   3+        -        yes   Error of the whole request as a
                                                                        `kbatch.ErrorCode`; 0 if none.
results                []DescribeLogDirsResult  0+       -        -     One entry per log directory.
  error_code           int16                   0+        -        -     Error of this entry as a `kbatch.ErrorCode`; 0
                                                                        if none.
  log_dir              string                  0+        -        -     Path of the log directory.
  topics               []DescribeLogDirsTopic  0+        -        -     One entry per topic.
    name               string                  0+        -        -     Name of the topic.
    partitions         []DescribeLogDirsPartition  0+    -        -     One entry per partition.
      partition_index  int32                   0+        -        -     Number of the partition.
      partition_size   int64                   0+        -        -     Size of the log in bytes.
      offset_lag       int64                   0+        -        -     Number of records that the copy lags behind.
      is_future_key    bool                    0+        -        -     Whether this copy will replace the current one.
  total_bytes          int64                   4+        -1       yes   Size of the volume in bytes; -1 if unknown.
  usable_bytes         int64                   4+        -1       yes   Free bytes of the volume; -1 if unknown.
  is_cordoned          bool                    5+        false    yes   Whether the directory gets no new partitions.

DescribeQuorumRequest: API key 55, versions 0-2, flexible 0+

field                type             versions  meaning
topics               []TopicData      0+        One entry per topic.
  topic_name         string           0+        Name of the topic.
  partitions         []PartitionData  0+        One entry per partition.
    partition_index  int32            0+        Number of the partition.

DescribeQuorumResponse: API key 55, versions 0-2, flexible 0+

field                       type             versions  null  default  skip  meaning
error_code                  int16            0+        -     -        -     Error of the whole request as a
                                                                            `kbatch.ErrorCode`; 0 if none.
error_message               string           2+        2+    -        yes   Text of the error; null if there is none.
topics                      []TopicData      0+        -     -        -     One entry per topic.
  topic_name                string           0+        -     -        -     Name of the topic.
  partitions                []PartitionData  0+        -     -        -     One entry per partition.
    partition_index         int32            0+        -     -        -     Number of the partition.
    error_code              int16            0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`;
                                                                            0 if none.
    error_message           string           2+        2+    -        yes   Text of the error; null if there is none.
    leader_id               int32            0+        -     -        -     Broker id of the leader; -1 if there is none
                                                                            or it is unknown.
    leader_epoch            int32            0+        -     -        -     Leader epoch; -1 if unknown.
    high_watermark          int64            0+        -     -        -     Offset after the last committed record.
    current_voters          []ReplicaState   0+        -     -        -     Replicas that vote.
      replica_id            int32            0+        -     -        -     Id of the replica.
      replica_directory_id  uuid             2+        -     -        -     Id of the replica's directory.
      log_end_offset        int64            0+        -     -        -     Offset after the last record of the replica;
                                                                            -1 if unknown.
      last_fetch_timestamp  int64            1+        -     -1       yes   Time in ms of the last fetch by the replica;
                                                                            -1 if unknown.
      last_caught_up_timestamp  int64        1+        -     -1       yes   Time in ms at which the replica had all
                                                                            records; -1 if unknown.
    observers               []ReplicaState   0+        -     -        -     Replicas that do not vote.
      replica_id            int32            0+        -     -        -     Id of the replica.
      replica_directory_id  uuid             2+        -     -        -     Id of the replica's directory.
      log_end_offset        int64            0+        -     -        -     Offset after the last record of the replica;
                                                                            -1 if unknown.
      last_fetch_timestamp  int64            1+        -     -1       yes   Time in ms of the last fetch by the replica;
                                                                            -1 if unknown.
      last_caught_up_timestamp  int64        1+        -     -1       yes   Time in ms at which the replica had all
                                                                            records; -1 if unknown.
nodes                       []Node           2+        -     -        -     One entry per node.
  node_id                   int32            2+        -     -        -     Id of the node.
  listeners                 []Listener       2+        -     -        -     Addresses of the node.
    name                    string           2+        -     -        -     Name of the listener.
    host                    string           2+        -     -        -     Host name or address to connect to.
    port                    uint16           2+        -     -        -     Port to connect to.

AddRaftVoterRequest: API key 80, versions 0-1, flexible 0+

field               type        versions  null  default  meaning
cluster_id          string      0+        0+    -        Id of the cluster, checked by the receiver; null to skip the
                                                         check.
timeout_ms          int32       0+        -     -        Time in ms that the broker may take.
voter_id            int32       0+        -     -        Id of the voter.
voter_directory_id  uuid        0+        -     -        Id of the voter's directory.
listeners           []Listener  0+        -     -        Addresses of the voter.
  name              string      0+        -     -        Name of the listener.
  host              string      0+        -     -        Host name or address to connect to.
  port              uint16      0+        -     -        Port to connect to.
ack_when_committed  bool        1+        -     true     Whether to answer when the new set of voters is committed
                                                         rather than when the leader has written it.

AddRaftVoterResponse: API key 80, versions 0-1, flexible 0+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    Text of the error; null if there is none.

RemoveRaftVoterRequest: API key 81, versions 0, flexible 0+

field               type    versions  null  meaning
cluster_id          string  0+        0+    Id of the cluster, checked by the receiver; null to skip the check.
voter_id            int32   0+        -     Id of the voter.
voter_directory_id  uuid    0+        -     Id of the voter's directory.

RemoveRaftVoterResponse: API key 81, versions 0, flexible 0+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    Text of the error; null if there is none.

UnregisterBrokerRequest: API key 64, versions 0, flexible 0+

field      type   versions  meaning
broker_id  int32  0+        Broker id.

UnregisterBrokerResponse: API key 64, versions 0, flexible 0+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    Text of the error; null if there is none.

UnregisterControllerRequest: API key 94, versions 0, flexible 0+

field          type   versions  meaning
controller_id  int32  0+        Id of the controller.

UnregisterControllerResponse: API key 94, versions 0, flexible 0+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    Text of the error; null if there is none.
"""

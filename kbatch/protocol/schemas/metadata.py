"""Brokers, topics and partitions. `kbatch.protocol.schema` explains the tables."""

METADATA_TABLES = """
MetadataRequest: API key 3, versions 0-13, flexible 9+

field                      type                    versions  null  default  skip  meaning
topics                     []MetadataRequestTopic  0+        1+    -        -     Topics to describe; null for all; in
                                                                                  version 0 an empty array for all.
  topic_id                 uuid                    10+       -     -        yes   Id of the topic; zeros if unknown.
  name                     string                  0+        10+   -        -     Name of the topic; null if it is given
                                                                                  by id.
allow_auto_topic_creation  bool                    4+        -     true     -     Whether the broker may create missing
                                                                                  topics.
include_cluster_authorized_operations  bool        8-10      -     -        -     Whether to return the allowed
                                                                                  operations on the cluster.
include_topic_authorized_operations  bool          8+        -     -        -     Whether to return the allowed
                                                                                  operations on each topic.

MetadataResponse: API key 3, versions 0-13, flexible 9+

field                 type     versions  null  default  skip  meaning
throttle_time_ms      int32    3+        -     -        yes   Time in ms that the broker delays the client because of a
                                                              quota.
brokers               []MetadataResponseBroker  0+  -  -  -   Brokers that clients can connect to.
  node_id             int32    0+        -     -        -     Broker id.
  host                string   0+        -     -        -     Host name or address to connect to.
  port                int32    0+        -     -        -     Port to connect to.
  rack                string   1+        1+    null     yes   Rack of the broker; null if it has none.
cluster_id            string   2+        2+    null     yes   Id of the cluster; null if unknown.
controller_id         int32    1+        -     -1       yes   Broker id of the controller; -1 if unknown.
topics                []MetadataResponseTopic  0+  -  -  -    One entry per topic.
  error_code          int16    0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  name                string   0+        12+   -        -     Name of the topic; null if the id is unknown.
  topic_id            uuid     10+       -     -        yes   Id of the topic; zeros if unknown.
  is_internal         bool     1+        -     false    yes   Whether the topic belongs to Kafka itself.
  partitions          []MetadataResponsePartition  0+  -  -  -  One entry per partition.
    error_code        int16    0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    partition_index   int32    0+        -     -        -     Number of the partition.
    leader_id         int32    0+        -     -        -     Broker id of the leader; -1 if there is none or it is
                                                              unknown.
    leader_epoch      int32    7+        -     -1       yes   Leader epoch; -1 if unknown.
    replica_nodes     []int32  0+        -     -        -     Brokers of the replicas.
    isr_nodes         []int32  0+        -     -        -     Brokers of the replicas in sync.
    offline_replicas  []int32  5+        -     -        yes   Brokers of the replicas that are offline.
  topic_authorized_operations  int32  8+  -    -2147483648  -  Allowed operations on the topic as a bit field of ACL
                                                              codes; -2147483648 if not requested.
cluster_authorized_operations  int32  8-10  -  -2147483648  -  Allowed operations on the cluster as a bit field of ACL
                                                              codes; -2147483648 if not requested.
error_code            int16    13+       -     -        yes   Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                              none.

DescribeTopicPartitionsRequest: API key 75, versions 0, flexible 0+

field                     type            versions  null  default  meaning
topics                    []TopicRequest  0+        -     -        Topics to describe.
  name                    string          0+        -     -        Name of the topic.
response_partition_limit  int32           0+        -     2000     Largest number of partitions in the response.
cursor                    Cursor          0+        0+    null     Where to resume; null to begin with the first topic.
  topic_name              string          0+        -     -        Topic to resume with.
  partition_index         int32           0+        -     -        Partition to resume with.

DescribeTopicPartitionsResponse: API key 75, versions 0, flexible 0+

field                 type     versions  null  default  skip  meaning
throttle_time_ms      int32    0+        -     -        yes   Time in ms that the broker delays the client because of a
                                                              quota.
topics                []DescribeTopicPartitionsResponseTopic  0+  -  -  -  One entry per topic.
  error_code          int16    0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  name                string   0+        0+    -        -     Name of the topic; null if it is unknown.
  topic_id            uuid     0+        -     -        yes   Id of the topic; zeros if unknown.
  is_internal         bool     0+        -     false    yes   Whether the topic belongs to Kafka itself.
  partitions          []DescribeTopicPartitionsResponsePartition  0+  -  -  -  One entry per partition.
    error_code        int16    0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    partition_index   int32    0+        -     -        -     Number of the partition.
    leader_id         int32    0+        -     -        -     Broker id of the leader; -1 if there is none or it is
                                                              unknown.
    leader_epoch      int32    0+        -     -1       yes   Leader epoch; -1 if unknown.
    replica_nodes     []int32  0+        -     -        -     Brokers of the replicas.
    isr_nodes         []int32  0+        -     -        -     Brokers of the replicas in sync.
    eligible_leader_replicas  []int32  0+  0+  null     -     Replicas not in sync that may become leader; null if
                                                              unknown.
    last_known_elr    []int32  0+        0+    null     -     Last known replicas that were eligible as leader; null if
                                                              unknown.
    offline_replicas  []int32  0+        -     -        yes   Brokers of the replicas that are offline.
  topic_authorized_operations  int32  0+  -    -2147483648  -  Allowed operations on the topic as a bit field of ACL
                                                              codes; -2147483648 if not requested.
next_cursor           Cursor   0+        0+    null     -     Where the next request resumes; null after the last
                                                              partition.
  topic_name          string   0+        -     -        -     Topic to resume with.
  partition_index     int32    0+        -     -        -     Partition to resume with.

DescribeClusterRequest: API key 60, versions 0-2, flexible 0+

field                   type  versions  default  meaning
include_cluster_authorized_operations  bool  0+  -  Whether to return the allowed operations on the cluster.
endpoint_type           int8  1+        1        Kind of servers to list: 1 brokers, 2 controllers.
include_fenced_brokers  bool  2+        -        Whether to list brokers that are fenced.

DescribeClusterResponse: API key 60, versions 0-2, flexible 0+

field             type    versions  null  default  meaning
throttle_time_ms  int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    null     Text of the error; null if there is none.
endpoint_type     int8    1+        -     1        Kind of servers to list: 1 brokers, 2 controllers.
cluster_id        string  0+        -     -        Id of the cluster; null if unknown.
controller_id     int32   0+        -     -1       Broker id of the controller; -1 if unknown.
brokers           []DescribeClusterBroker  0+  -  -  Brokers that clients can connect to.
  broker_id       int32   0+        -     -        Id of the broker.
  host            string  0+        -     -        Host name or address to connect to.
  port            int32   0+        -     -        Port to connect to.
  rack            string  0+        0+    null     Rack of the broker; null if it has none.
  is_fenced       bool    2+        -     -        Whether the broker is fenced.
cluster_authorized_operations  int32  0+  -  -2147483648  Allowed operations on the cluster as a bit field of ACL codes;
                                                   -2147483648 if not requested.

FindCoordinatorRequest: API key 10, versions 0-6, flexible 3+

field             type      versions  default  meaning
key               string    0-3       -        Group id or transactional id to look up.
key_type          int8      1+        0        Kind of the key: 0 group, 1 transactional id, 2 share group.
coordinator_keys  []string  4+        -        Group ids or transactional ids to look up.

FindCoordinatorResponse: API key 10, versions 0-6, flexible 3+

field             type           versions  null  skip  meaning
throttle_time_ms  int32          1+        -     yes   Time in ms that the broker delays the client because of a quota.
error_code        int16          0-3       -     -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string         1-3       1-3   yes   Text of the error; null if there is none.
node_id           int32          0-3       -     -     Broker id.
host              string         0-3       -     -     Host name or address to connect to.
port              int32          0-3       -     -     Port to connect to.
coordinators      []Coordinator  4+        -     -     Coordinator of each key.
  key             string         4+        -     -     Group id or transactional id that was looked up.
  node_id         int32          4+        -     -     Broker id.
  host            string         4+        -     -     Host name or address to connect to.
  port            int32          4+        -     -     Port to connect to.
  error_code      int16          4+        -     -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string         4+        4+    yes   Text of the error; null if there is none.
"""

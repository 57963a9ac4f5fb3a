"""Share groups: membership, records and offsets. `kbatch.protocol.schema` explains the tables."""

SHARE_GROUPS_TABLES = """
ShareGroupHeartbeatRequest: API key 76, versions 1, flexible 0+

field                   type      versions  null  default  meaning
group_id                string    0+        -     -        Id of the group.
member_id               string    0+        -     -        Id of the member, chosen by the client.
member_epoch            int32     0+        -     -        Epoch of the member; 0 to join, -1 to leave.
rack_id                 string    0+        0+    null     Rack of the member; null if it has none or it is unchanged.
subscribed_topic_names  []string  0+        0+    null     Topics that the member subscribes to; null if unchanged.

ShareGroupHeartbeatResponse: API key 76, versions 1, flexible 0+

field                  type               versions  null  default  meaning
throttle_time_ms       int32              0+        -     -        Time in ms that the broker delays the client because
                                                                   of a quota.
error_code             int16              0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0
                                                                   if none.
error_message          string             0+        0+    null     Text of the error; null if there is none.
member_id              string             0+        0+    null     Id of the member, chosen by the client.
member_epoch           int32              0+        -     -        Epoch of the member.
heartbeat_interval_ms  int32              0+        -     -        Time in ms between the heartbeats of the member.
assignment             Assignment         0+        0+    null     Partitions of the member; null if unchanged.
  topic_partitions     []TopicPartitions  0+        -     -        One entry per topic.
    topic_id           uuid               0+        -     -        Id of the topic; zeros if unknown.
    partitions         []int32            0+        -     -        Numbers of the partitions.

ShareGroupDescribeRequest: API key 77, versions 1, flexible 0+

field      type      versions  meaning
group_ids  []string  0+        Ids of the groups.
include_authorized_operations  bool  0+  Whether to return the allowed operations.

ShareGroupDescribeResponse: API key 77, versions 1, flexible 0+

field                       type               versions  null  default  meaning
throttle_time_ms            int32              0+        -     -        Time in ms that the broker delays the client
                                                                        because of a quota.
groups                      []DescribedGroup   0+        -     -        One entry per group.
  error_code                int16              0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0
                                                                        if none.
  error_message             string             0+        0+    null     Text of the error; null if there is none.
  group_id                  string             0+        -     -        Id of the group.
  group_state               string             0+        -     -        State of the group, such as Stable; empty if
                                                                        unknown.
  group_epoch               int32              0+        -     -        Epoch of the group.
  assignment_epoch          int32              0+        -     -        Epoch of the target assignment.
  assignor_name             string             0+        -     -        Name of the assignor.
  members                   []Member           0+        -     -        One entry per member.
    member_id               string             0+        -     -        Id of the member, chosen by the client.
    rack_id                 string             0+        0+    null     Rack of the member; null if it has none.
    member_epoch            int32              0+        -     -        Epoch of the member.
    client_id               string             0+        -     -        Client id of the member.
    client_host             string             0+        -     -        Address of the member.
    subscribed_topic_names  []string           0+        -     -        Topics that the member subscribes to.
    assignment              Assignment         0+        -     -        What is assigned to the member now.
      topic_partitions      []TopicPartitions  0+        -     -        One entry per topic.
        topic_id            uuid               0+        -     -        Id of the topic; zeros if unknown.
        topic_name          string             0+        -     -        Name of the topic.
        partitions          []int32            0+        -     -        Numbers of the partitions.
  authorized_operations     int32              0+        -     -2147483648  Allowed operations as a bit field of ACL
                                                                        codes; -2147483648 if not requested.

ShareFetchRequest: API key 78, versions 1-2, flexible 0+

field                        type                    versions  null  default  skip  meaning
group_id                     string                  0+        0+    null     -     Id of the group.
member_id                    string                  0+        0+    -        -     Id of the member, chosen by the
                                                                                    client.
share_session_epoch          int32                   0+        -     -        -     Epoch of the share session; 0 to
                                                                                    open one, -1 to close it.
max_wait_ms                  int32                   0+        -     -        -     Longest time in ms to wait for
                                                                                    records.
min_bytes                    int32                   0+        -     -        -     Smallest number of bytes to wait
                                                                                    for.
max_bytes                    int32                   0+        -     2147483647  -  Largest number of bytes of all
                                                                                    partitions.
max_records                  int32                   1+        -     -        -     Largest number of records; whole
                                                                                    batches may exceed it.
batch_size                   int32                   1+        -     -        -     Number of records that a range of
                                                                                    acquired offsets should have.
share_acquire_mode           int8                    2+        -     0        yes   How records are acquired: 0 whole
                                                                                    batches, 1 as many records as
                                                                                    requested.
is_renew_ack                 bool                    2+        -     false    -     Whether there are acknowledgements
                                                                                    of type renew.
topics                       []FetchTopic            0+        -     -        -     Partitions to fetch, one entry per
                                                                                    topic.
  topic_id                   uuid                    0+        -     -        -     Id of the topic; zeros if unknown.
  partitions                 []FetchPartition        0+        -     -        -     One entry per partition.
    partition_index          int32                   0+        -     -        -     Number of the partition.
    acknowledgement_batches  []AcknowledgementBatch  0+        -     -        -     Ranges of offsets that are
                                                                                    acknowledged.
      first_offset           int64                   0+        -     -        -     First offset of the range.
      last_offset            int64                   0+        -     -        -     Last offset of the range, inclusive.
      acknowledge_types      []int8                  0+        -     -        -     One for all offsets or one per
                                                                                    offset: 0 gap, 1 accept, 2 release,
                                                                                    3 reject, 4 renew.
forgotten_topics_data        []ForgottenTopic        0+        -     -        -     Partitions that leave the share
                                                                                    session.
  topic_id                   uuid                    0+        -     -        -     Id of the topic; zeros if unknown.
  partitions                 []int32                 0+        -     -        -     Numbers of the partitions.

ShareFetchResponse: API key 78, versions 1-2, flexible 0+

field                        type               versions  null  default  meaning
throttle_time_ms             int32              0+        -     -        Time in ms that the broker delays the client
                                                                         because of a quota.
error_code                   int16              0+        -     -        Error of the whole request as a
                                                                         `kbatch.ErrorCode`; 0 if none.
error_message                string             0+        0+    null     Text of the error; null if there is none.
acquisition_lock_timeout_ms  int32              1+        -     -        Time in ms after which acquired records go to
                                                                         other members.
responses                    []ShareFetchableTopicResponse  0+  -  -     One entry per topic.
  topic_id                   uuid               0+        -     -        Id of the topic; zeros if unknown.
  partitions                 []PartitionData    0+        -     -        One entry per partition.
    partition_index          int32              0+        -     -        Number of the partition.
    error_code               int16              0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0
                                                                         if none.
    error_message            string             0+        0+    null     Text of the error; null if there is none.
    acknowledge_error_code   int16              0+        -     -        Error of the acknowledgement as a
                                                                         `kbatch.ErrorCode`; 0 if none.
    acknowledge_error_message  string           0+        0+    null     Text of the error; null if there is none.
    current_leader           LeaderIdAndEpoch   0+        -     -        Leader to contact after an error about
                                                                         leadership.
      leader_id              int32              0+        -     -        Broker id of the leader; -1 if there is none or
                                                                         it is unknown.
      leader_epoch           int32              0+        -     -        Leader epoch; -1 if unknown.
    records                  records            0+        0     -        Record batches; `kbatch.decode` reads them.
    acquired_records         []AcquiredRecords  0+        -     -        Ranges of offsets that the member now holds.
      first_offset           int64              0+        -     -        First offset of the range.
      last_offset            int64              0+        -     -        Last offset of the range, inclusive.
      delivery_count         int16              0+        -     -        How often the records have been delivered.
node_endpoints               []NodeEndpoint     0+        -     -        Addresses of the leaders in `current_leader`.
  node_id                    int32              0+        -     -        Broker id.
  host                       string             0+        -     -        Host name or address to connect to.
  port                       int32              0+        -     -        Port to connect to.
  rack                       string             0+        0+    null     Rack of the broker; null if it has none.

ShareAcknowledgeRequest: API key 79, versions 1-2, flexible 0+

field                        type                    versions  null  default  meaning
group_id                     string                  0+        0+    null     Id of the group.
member_id                    string                  0+        0+    -        Id of the member, chosen by the client.
share_session_epoch          int32                   0+        -     -        Epoch of the share session; 0 to open one,
                                                                              -1 to close it.
is_renew_ack                 bool                    2+        -     false    Whether there are acknowledgements of type
                                                                              renew.
topics                       []AcknowledgeTopic      0+        -     -        One entry per topic.
  topic_id                   uuid                    0+        -     -        Id of the topic; zeros if unknown.
  partitions                 []AcknowledgePartition  0+        -     -        One entry per partition.
    partition_index          int32                   0+        -     -        Number of the partition.
    acknowledgement_batches  []AcknowledgementBatch  0+        -     -        Ranges of offsets that are acknowledged.
      first_offset           int64                   0+        -     -        First offset of the range.
      last_offset            int64                   0+        -     -        Last offset of the range, inclusive.
      acknowledge_types      []int8                  0+        -     -        One for all offsets or one per offset: 0
                                                                              gap, 1 accept, 2 release, 3 reject, 4
                                                                              renew.

ShareAcknowledgeResponse: API key 79, versions 1-2, flexible 0+

field                        type              versions  null  default  skip  meaning
throttle_time_ms             int32             0+        -     -        -     Time in ms that the broker delays the
                                                                              client because of a quota.
error_code                   int16             0+        -     -        -     Error of the whole request as a
                                                                              `kbatch.ErrorCode`; 0 if none.
error_message                string            0+        0+    null     -     Text of the error; null if there is none.
acquisition_lock_timeout_ms  int32             2+        -     -        yes   Time in ms after which acquired records go
                                                                              to other members.
responses                    []ShareAcknowledgeTopicResponse  0+  -  -  -     One entry per topic.
  topic_id                   uuid              0+        -     -        -     Id of the topic; zeros if unknown.
  partitions                 []PartitionData   0+        -     -        -     One entry per partition.
    partition_index          int32             0+        -     -        -     Number of the partition.
    error_code               int16             0+        -     -        -     Error of this entry as a
                                                                              `kbatch.ErrorCode`; 0 if none.
    error_message            string            0+        0+    null     -     Text of the error; null if there is none.
    current_leader           LeaderIdAndEpoch  0+        -     -        -     Leader to contact after an error about
                                                                              leadership.
      leader_id              int32             0+        -     -        -     Broker id of the leader; -1 if there is
                                                                              none or it is unknown.
      leader_epoch           int32             0+        -     -        -     Leader epoch; -1 if unknown.
node_endpoints               []NodeEndpoint    0+        -     -        -     Addresses of the leaders in
                                                                              `current_leader`.
  node_id                    int32             0+        -     -        -     Broker id.
  host                       string            0+        -     -        -     Host name or address to connect to.
  port                       int32             0+        -     -        -     Port to connect to.
  rack                       string            0+        0+    null     -     Rack of the broker; null if it has none.

DescribeShareGroupOffsetsRequest: API key 90, versions 0-1, flexible 0+

field           type     versions  null  meaning
groups          []DescribeShareGroupOffsetsRequestGroup  0+  -  One entry per group.
  group_id      string   0+        -     Id of the group.
  topics        []DescribeShareGroupOffsetsRequestTopic  0+  0+  Topics to describe; null for all.
    topic_name  string   0+        -     Name of the topic.
    partitions  []int32  0+        -     Numbers of the partitions.

DescribeShareGroupOffsetsResponse: API key 90, versions 0-1, flexible 0+

field                  type    versions  null  default  skip  meaning
throttle_time_ms       int32   0+        -     -        -     Time in ms that the broker delays the client because of a
                                                              quota.
groups                 []DescribeShareGroupOffsetsResponseGroup  0+  -  -  -  One entry per group.
  group_id             string  0+        -     -        -     Id of the group.
  topics               []DescribeShareGroupOffsetsResponseTopic  0+  -  -  -  One entry per topic.
    topic_name         string  0+        -     -        -     Name of the topic.
    topic_id           uuid    0+        -     -        -     Id of the topic; zeros if unknown.
    partitions         []DescribeShareGroupOffsetsResponsePartition  0+  -  -  -  One entry per partition.
      partition_index  int32   0+        -     -        -     Number of the partition.
      start_offset     int64   0+        -     -        -     First offset that is not delivered completely; -1 if
                                                              unknown.
      leader_epoch     int32   0+        -     -        -     Leader epoch; -1 if unknown.
      lag              int64   1+        -     -1       yes   Number of records not delivered completely; -1 if unknown.
      error_code       int16   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
      error_message    string  0+        0+    null     -     Text of the error; null if there is none.
  error_code           int16   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message        string  0+        0+    null     -     Text of the error; null if there is none.

AlterShareGroupOffsetsRequest: API key 91, versions 0, flexible 0+

field                type    versions  meaning
group_id             string  0+        Id of the group.
topics               []AlterShareGroupOffsetsRequestTopic  0+  One entry per topic.
  topic_name         string  0+        Name of the topic.
  partitions         []AlterShareGroupOffsetsRequestPartition  0+  One entry per partition.
    partition_index  int32   0+        Number of the partition.
    start_offset     int64   0+        Offset at which delivery begins.

AlterShareGroupOffsetsResponse: API key 91, versions 0, flexible 0+

field                type    versions  null  default  meaning
throttle_time_ms     int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
error_code           int16   0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message        string  0+        0+    null     Text of the error; null if there is none.
responses            []AlterShareGroupOffsetsResponseTopic  0+  -  -  One entry per topic.
  topic_name         string  0+        -     -        Name of the topic.
  topic_id           uuid    0+        -     -        Id of the topic; zeros if unknown.
  partitions         []AlterShareGroupOffsetsResponsePartition  0+  -  -  One entry per partition.
    partition_index  int32   0+        -     -        Number of the partition.
    error_code       int16   0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    error_message    string  0+        0+    null     Text of the error; null if there is none.

DeleteShareGroupOffsetsRequest: API key 92, versions 0, flexible 0+

field         type    versions  meaning
group_id      string  0+        Id of the group.
topics        []DeleteShareGroupOffsetsRequestTopic  0+  One entry per topic.
  topic_name  string  0+        Name of the topic.

DeleteShareGroupOffsetsResponse: API key 92, versions 0, flexible 0+

field             type    versions  null  default  meaning
throttle_time_ms  int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    null     Text of the error; null if there is none.
responses         []DeleteShareGroupOffsetsResponseTopic  0+  -  -  One entry per topic.
  topic_name      string  0+        -     -        Name of the topic.
  topic_id        uuid    0+        -     -        Id of the topic; zeros if unknown.
  error_code      int16   0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    null     Text of the error; null if there is none.
"""

"""Records of consumer groups and share groups in `__consumer_offsets`. `kbatch.protocol.schema` explains the tables."""

STORED_GROUPS_TABLES = """
ConsumerGroupMetadataKey: record type 3, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ConsumerGroupMetadataValue: record type 3, versions 0, flexible 0+

field          type   versions  tag  default  meaning
epoch          int32  0+        -    -        Epoch of the group.
metadata_hash  int64  0+        0    0        Hash of the topics that the group reads; 0 if unknown.

ConsumerGroupPartitionMetadataKey: record type 4, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ConsumerGroupPartitionMetadataValue: record type 4, versions 0, flexible 0+

field                 type                 versions  meaning
topics                []TopicMetadata      0+        One entry per topic.
  topic_id            uuid                 0+        Id of the topic; zeros if unknown.
  topic_name          string               0+        Name of the topic.
  num_partitions      int32                0+        Number of partitions.
  partition_metadata  []PartitionMetadata  0+        One entry per partition; empty since Kafka 4.1.
    partition         int32                0+        Number of the partition.
    racks             []string             0+        Racks of the replicas.

ConsumerGroupMemberMetadataKey: record type 5, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ConsumerGroupMemberMetadataValue: record type 5, versions 0, flexible 0+

field                    type                   versions  null  tag  default  meaning
instance_id              string                 0+        0+    -    -        Id of a static member, chosen by the user;
                                                                              null for a dynamic member.
rack_id                  string                 0+        0+    -    -        Rack of the member; null if it has none.
client_id                string                 0+        -     -    -        Client id of the member.
client_host              string                 0+        -     -    -        Address of the member.
subscribed_topic_names   []string               0+        -     -    -        Topics that the member subscribes to.
subscribed_topic_regex   string                 0+        0+    -    -        Regular expression of topics that the
                                                                              member subscribes to; null if there is
                                                                              none.
rebalance_timeout_ms     int32                  0+        -     -    -1       Time in ms that the member has to give up
                                                                              partitions; -1 if unknown.
server_assignor          string                 0+        0+    -    -        Name of the assignor that the member
                                                                              requests; null for the broker's choice.
classic_member_metadata  ClassicMemberMetadata  0+        0+    0    -        What a member of the classic protocol
                                                                              sent; null for others.
  session_timeout_ms     int32                  0+        -     -    -        Time in ms without a heartbeat after which
                                                                              the member is removed.
  supported_protocols    []ClassicProtocol      0+        -     -    -        Assignors that the member supports.
    name                 string                 0+        -     -    -        Name of the assignor.
    metadata             bytes                  0+        -     -    -        Subscription, in the form of the protocol.

ConsumerGroupTargetAssignmentMetadataKey: record type 6, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ConsumerGroupTargetAssignmentMetadataValue: record type 6, versions 0, flexible 0+

field                 type   versions  tag  default  meaning
assignment_epoch      int32  0+        -    -        Epoch of the target assignment.
assignment_timestamp  int64  0+        0    0        Time in ms at which the assignment was computed; 0 if unknown.

ConsumerGroupTargetAssignmentMemberKey: record type 7, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ConsumerGroupTargetAssignmentMemberValue: record type 7, versions 0, flexible 0+

field             type              versions  meaning
topic_partitions  []TopicPartition  0+        One entry per topic.
  topic_id        uuid              0+        Id of the topic; zeros if unknown.
  partitions      []int32           0+        Numbers of the partitions.

ConsumerGroupCurrentMemberAssignmentKey: record type 8, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ConsumerGroupCurrentMemberAssignmentValue: record type 8, versions 0, flexible 0+

field                  type               versions  null  tag  meaning
member_epoch           int32              0+        -     -    Epoch of the member.
previous_member_epoch  int32              0+        -     -    Epoch of the member before the last change.
state                  int8               0+        -     -    State of the member, a code of Kafka's MemberState.
assigned_partitions    []TopicPartitions  0+        -     -    Partitions that the member owns.
  topic_id             uuid               0+        -     -    Id of the topic; zeros if unknown.
  partitions           []int32            0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32            0+        0+    0    Epoch of each assignment, one per partition; null or
                                                               empty if not stored.
partitions_pending_revocation  []TopicPartitions  0+  -   -    Partitions that the member has to give up.
  topic_id             uuid               0+        -     -    Id of the topic; zeros if unknown.
  partitions           []int32            0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32            0+        0+    0    Epoch of each assignment, one per partition; null or
                                                               empty if not stored.

ShareGroupMemberMetadataKey: record type 10, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ShareGroupMemberMetadataValue: record type 10, versions 0, flexible 0+

field                   type      versions  null  meaning
rack_id                 string    0+        0+    Rack of the member; null if it has none.
client_id               string    0+        -     Client id of the member.
client_host             string    0+        -     Address of the member.
subscribed_topic_names  []string  0+        -     Topics that the member subscribes to.

ShareGroupMetadataKey: record type 11, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ShareGroupMetadataValue: record type 11, versions 0, flexible 0+

field          type   versions  meaning
epoch          int32  0+        Epoch of the group.
metadata_hash  int64  0+        Hash of the topics that the group reads; 0 if unknown.

ShareGroupTargetAssignmentMetadataKey: record type 12, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ShareGroupTargetAssignmentMetadataValue: record type 12, versions 0, flexible 0+

field                 type   versions  tag  default  meaning
assignment_epoch      int32  0+        -    -        Epoch of the target assignment.
assignment_timestamp  int64  0+        0    0        Time in ms at which the assignment was computed; 0 if unknown.

ShareGroupTargetAssignmentMemberKey: record type 13, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ShareGroupTargetAssignmentMemberValue: record type 13, versions 0, flexible 0+

field             type              versions  meaning
topic_partitions  []TopicPartition  0+        One entry per topic.
  topic_id        uuid              0+        Id of the topic; zeros if unknown.
  partitions      []int32           0+        Numbers of the partitions.

ShareGroupCurrentMemberAssignmentKey: record type 14, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

ShareGroupCurrentMemberAssignmentValue: record type 14, versions 0, flexible 0+

field                  type               versions  meaning
member_epoch           int32              0+        Epoch of the member.
previous_member_epoch  int32              0+        Epoch of the member before the last change.
state                  int8               0+        State of the member, a code of Kafka's MemberState.
assigned_partitions    []TopicPartitions  0+        Partitions that the member owns.
  topic_id             uuid               0+        Id of the topic; zeros if unknown.
  partitions           []int32            0+        Numbers of the partitions.

ShareGroupStatePartitionMetadataKey: record type 15, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

ShareGroupStatePartitionMetadataValue: record type 15, versions 0, flexible 0+

field                type                   versions  meaning
initializing_topics  []TopicPartitionsInfo  0+        Topics whose share state is being created.
  topic_id           uuid                   0+        Id of the topic; zeros if unknown.
  topic_name         string                 0+        Name of the topic.
  partitions         []int32                0+        Numbers of the partitions.
initialized_topics   []TopicPartitionsInfo  0+        Topics whose share state exists.
  topic_id           uuid                   0+        Id of the topic; zeros if unknown.
  topic_name         string                 0+        Name of the topic.
  partitions         []int32                0+        Numbers of the partitions.
deleting_topics      []TopicInfo            0+        Topics whose share state is being deleted.
  topic_id           uuid                   0+        Id of the topic; zeros if unknown.
  topic_name         string                 0+        Name of the topic.

ConsumerGroupRegularExpressionKey: record type 16, versions 0, flexible none

field               type    versions  meaning
group_id            string  0         Id of the group.
regular_expression  string  0         Regular expression of topics.

ConsumerGroupRegularExpressionValue: record type 16, versions 0, flexible 0+

field      type      versions  meaning
topics     []string  0+        Topics that match.
version    int64     0+        Version of the cluster's metadata.
timestamp  int64     0+        Time in ms at which the topics were looked up.
"""

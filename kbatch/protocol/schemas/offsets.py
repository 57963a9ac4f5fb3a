"""Offsets of partitions and of groups. `kbatch.protocol.schema` explains the tables."""

OFFSETS_TABLES = """
ListOffsetsRequest: API key 2, versions 0-11, flexible 6+

field                     type                    versions  default  skip  meaning
replica_id                int32                   0+        -        -     Broker id of a follower; -1 from a client.
isolation_level           int8                    2+        -        -     0 read_uncommitted, 1 read_committed.
topics                    []ListOffsetsTopic      0+        -        -     One entry per topic.
  name                    string                  0+        -        -     Name of the topic.
  partitions              []ListOffsetsPartition  0+        -        -     One entry per partition.
    partition_index       int32                   0+        -        -     Number of the partition.
    current_leader_epoch  int32                   4+        -1       yes   Leader epoch that the client knows, checked
                                                                           by the broker; -1 to skip the check.
    timestamp             int64                   0+        -        -     Time in ms; -1 latest, -2 earliest, -3
                                                                           largest timestamp, -4 earliest local, -5
                                                                           latest tiered, -6 earliest not tiered yet.
    max_num_offsets       int32                   0         1        -     Largest number of offsets to return.
timeout_ms                int32                   10+       -        yes   Time in ms that the broker may take.

ListOffsetsResponse: API key 2, versions 0-11, flexible 6+

field                  type     versions  default  skip  meaning
throttle_time_ms       int32    2+        -        yes   Time in ms that the broker delays the client because of a
                                                         quota.
topics                 []ListOffsetsTopicResponse  0+  -  -  One entry per topic.
  name                 string   0+        -        -     Name of the topic.
  partitions           []ListOffsetsPartitionResponse  0+  -  -  One entry per partition.
    partition_index    int32    0+        -        -     Number of the partition.
    error_code         int16    0+        -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    old_style_offsets  []int64  0         -        -     Offsets found, in descending order (version 0 only).
    timestamp          int64    1+        -1       -     Timestamp of the record found; -1 if there is none.
    offset             int64    1+        -1       -     Offset found; -1 if there is none.
    leader_epoch       int32    4+        -1       -     Leader epoch; -1 if unknown.

OffsetForLeaderEpochRequest: API key 23, versions 0-4, flexible 4+

field                     type                    versions  default  skip  meaning
replica_id                int32                   3+        -2       yes   Broker id of a follower; -1 from a client.
topics                    []OffsetForLeaderTopic  0+        -        -     One entry per topic.
  topic                   string                  0+        -        -     Name of the topic.
  partitions              []OffsetForLeaderPartition  0+    -        -     One entry per partition.
    partition             int32                   0+        -        -     Number of the partition.
    current_leader_epoch  int32                   2+        -1       yes   Leader epoch that the client knows, checked
                                                                           by the broker; -1 to skip the check.
    leader_epoch          int32                   0+        -        -     Epoch whose end offset is requested.

OffsetForLeaderEpochResponse: API key 23, versions 0-4, flexible 4+

field             type              versions  default  skip  meaning
throttle_time_ms  int32             2+        -        yes   Time in ms that the broker delays the client because of a
                                                             quota.
topics            []OffsetForLeaderTopicResult  0+  -  -     One entry per topic.
  topic           string            0+        -        -     Name of the topic.
  partitions      []EpochEndOffset  0+        -        -     One entry per partition.
    error_code    int16             0+        -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
    partition     int32             0+        -        -     Number of the partition.
    leader_epoch  int32             1+        -1       yes   Leader epoch; -1 if unknown.
    end_offset    int64             0+        -1       -     End offset of the epoch; -1 if unknown.

OffsetCommitRequest: API key 8, versions 0-10, flexible 8+

field                       type    versions  null  default  skip  meaning
group_id                    string  0+        -     -        -     Id of the group.
generation_id_or_member_epoch  int32  1+      -     -1       yes   Generation of a classic group, or member epoch; -1
                                                                   outside of a group.
member_id                   string  1+        -     -        yes   Id of the member; empty if it has none yet.
group_instance_id           string  7+        7+    null     -     Id of a static member, chosen by the user; null for a
                                                                   dynamic member.
retention_time_ms           int64   2-4       -     -1       yes   Time in ms to keep the offset; -1 for the broker's
                                                                   setting.
topics                      []OffsetCommitRequestTopic  0+  -  -  -  One entry per topic.
  name                      string  0-9       -     -        yes   Name of the topic.
  topic_id                  uuid    10+       -     -        yes   Id of the topic; zeros if unknown.
  partitions                []OffsetCommitRequestPartition  0+  -  -  -  One entry per partition.
    partition_index         int32   0+        -     -        -     Number of the partition.
    committed_offset        int64   0+        -     -        -     Offset of the next record to consume.
    committed_leader_epoch  int32   6+        -     -1       yes   Leader epoch of the last record consumed; -1 if
                                                                   unknown.
    commit_timestamp        int64   1         -     -1       -     Time of the commit in ms; -1 for the broker's clock.
    committed_metadata      string  0+        0+    -        -     Text that the client stores with the offset.

OffsetCommitResponse: API key 8, versions 0-10, flexible 8+

field                type    versions  skip  meaning
throttle_time_ms     int32   3+        yes   Time in ms that the broker delays the client because of a quota.
topics               []OffsetCommitResponseTopic  0+  -  One entry per topic.
  name               string  0-9       yes   Name of the topic.
  topic_id           uuid    10+       yes   Id of the topic; zeros if unknown.
  partitions         []OffsetCommitResponsePartition  0+  -  One entry per partition.
    partition_index  int32   0+        -     Number of the partition.
    error_code       int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.

OffsetFetchRequest: API key 9, versions 0-10, flexible 6+

field                  type     versions  null  default  skip  meaning
group_id               string   0-7       -     -        -     Id of the group.
topics                 []OffsetFetchRequestTopic  0-7  2-7  -  -  Partitions to look up, one entry per topic; null for
                                                               all.
  name                 string   0-7       -     -        -     Name of the topic.
  partition_indexes    []int32  0-7       -     -        -     Numbers of the partitions.
groups                 []OffsetFetchRequestGroup  8+  -  -  -  One entry per group.
  group_id             string   8+        -     -        -     Id of the group.
  member_id            string   9+        9+    null     yes   Id of the member; empty if it has none yet.
  member_epoch         int32    9+        -     -1       yes   Epoch of the member; -1 outside of a consumer group
                                                               of KIP-848.
  topics               []OffsetFetchRequestTopics  8+  8+  -  -  Partitions to look up, one entry per topic; null for
                                                               all.
    name               string   8-9       -     -        yes   Name of the topic.
    topic_id           uuid     10+       -     -        yes   Id of the topic; zeros if unknown.
    partition_indexes  []int32  8+        -     -        -     Numbers of the partitions.
require_stable         bool     7+        -     false    -     Whether an open transaction that changes the offsets is
                                                               an error (UNSTABLE_OFFSET_COMMIT).

OffsetFetchResponse: API key 9, versions 0-10, flexible 6+

field                       type    versions  null  default  skip  meaning
throttle_time_ms            int32   3+        -     -        yes   Time in ms that the broker delays the client because
                                                                   of a quota.
topics                      []OffsetFetchResponseTopic  0-7  -  -  -  One entry per topic.
  name                      string  0-7       -     -        -     Name of the topic.
  partitions                []OffsetFetchResponsePartition  0-7  -  -  -  One entry per partition.
    partition_index         int32   0-7       -     -        -     Number of the partition.
    committed_offset        int64   0-7       -     -        -     Committed offset; -1 if there is none.
    committed_leader_epoch  int32   5-7       -     -1       yes   Leader epoch of the last record consumed; -1 if
                                                                   unknown.
    metadata                string  0-7       0-7   -        -     Text that was stored with the offset.
    error_code              int16   0-7       -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if
                                                                   none.
error_code                  int16   2-7       -     0        yes   Error of the whole request as a `kbatch.ErrorCode`; 0
                                                                   if none.
groups                      []OffsetFetchResponseGroup  8+  -  -  -  One entry per group.
  group_id                  string  8+        -     -        -     Id of the group.
  topics                    []OffsetFetchResponseTopics  8+  -  -  -  One entry per topic.
    name                    string  8-9       -     -        yes   Name of the topic.
    topic_id                uuid    10+       -     -        yes   Id of the topic; zeros if unknown.
    partitions              []OffsetFetchResponsePartitions  8+  -  -  -  One entry per partition.
      partition_index       int32   8+        -     -        -     Number of the partition.
      committed_offset      int64   8+        -     -        -     Committed offset; -1 if there is none.
      committed_leader_epoch  int32  8+       -     -1       yes   Leader epoch of the last record consumed; -1 if
                                                                   unknown.
      metadata              string  8+        8+    -        -     Text that was stored with the offset.
      error_code            int16   8+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if
                                                                   none.
  error_code                int16   8+        -     0        -     Error of this entry as a `kbatch.ErrorCode`; 0 if
                                                                   none.

OffsetDeleteRequest: API key 47, versions 0, flexible none

field                type    versions  meaning
group_id             string  0+        Id of the group.
topics               []OffsetDeleteRequestTopic  0+  One entry per topic.
  name               string  0+        Name of the topic.
  partitions         []OffsetDeleteRequestPartition  0+  One entry per partition.
    partition_index  int32   0+        Number of the partition.

OffsetDeleteResponse: API key 47, versions 0, flexible none

field                type    versions  skip  meaning
error_code           int16   0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
throttle_time_ms     int32   0+        yes   Time in ms that the broker delays the client because of a quota.
topics               []OffsetDeleteResponseTopic  0+  -  One entry per topic.
  name               string  0+        -     Name of the topic.
  partitions         []OffsetDeleteResponsePartition  0+  -  One entry per partition.
    partition_index  int32   0+        -     Number of the partition.
    error_code       int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
"""

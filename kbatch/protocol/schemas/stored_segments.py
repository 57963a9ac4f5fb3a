"""Records of `__remote_log_metadata`. `kbatch.protocol.schema` explains the tables."""

STORED_SEGMENTS_TABLES = """
RemoteLogSegmentMetadataRecord: record type 0, versions 0, flexible 0+

field                     type                   versions  null  tag  default  meaning
remote_log_segment_id     RemoteLogSegmentIdEntry  0+      -     -    -        What identifies the segment.
  topic_id_partition      TopicIdPartitionEntry  0+        -     -    -        Partition of the segment.
    name                  string                 0+        -     -    -        Name of the topic.
    id                    uuid                   0+        -     -    -        Id of the topic.
    partition             int32                  0+        -     -    -        Number of the partition.
  id                      uuid                   0+        -     -    -        Id of the segment.
start_offset              int64                  0+        -     -    -        First offset of the segment.
end_offset                int64                  0+        -     -    -        Last offset of the segment.
broker_id                 int32                  0+        -     -    -        Broker id.
max_timestamp_ms          int64                  0+        -     -    -        Largest timestamp of the segment, in ms.
event_timestamp_ms        int64                  0+        -     -    -        Time in ms of this event.
segment_leader_epochs     []SegmentLeaderEpochEntry  0+    -     -    -        Leader epochs in the segment, each with
                                                                               its first offset.
  leader_epoch            int32                  0+        -     -    -        Leader epoch.
  offset                  int64                  0+        -     -    -        First offset of the epoch.
segment_size_in_bytes     int32                  0+        -     -    -        Size of the segment in bytes.
custom_metadata           bytes                  0+        0+    -    null     Bytes of the storage plugin; null if
                                                                               there are none.
remote_log_segment_state  int8                   0+        -     -    -        State of the copy: 0 and 1 copying
                                                                               started and finished, 2 and 3 deleting
                                                                               started and finished.
txn_index_empty           bool                   0+        -     0    -        Whether the segment has no aborted
                                                                               transactions.

RemoteLogSegmentMetadataUpdateRecord: record type 1, versions 0, flexible 0+

field                     type                   versions  null  default  meaning
remote_log_segment_id     RemoteLogSegmentIdEntry  0+      -     -        What identifies the segment.
  topic_id_partition      TopicIdPartitionEntry  0+        -     -        Partition of the segment.
    name                  string                 0+        -     -        Name of the topic.
    id                    uuid                   0+        -     -        Id of the topic.
    partition             int32                  0+        -     -        Number of the partition.
  id                      uuid                   0+        -     -        Id of the segment.
broker_id                 int32                  0+        -     -        Broker id.
event_timestamp_ms        int64                  0+        -     -        Time in ms of this event.
custom_metadata           bytes                  0+        0+    null     Bytes of the storage plugin; null if there are
                                                                          none.
remote_log_segment_state  int8                   0+        -     -        State of the copy: 0 and 1 copying started and
                                                                          finished, 2 and 3 deleting started and
                                                                          finished.

RemotePartitionDeleteMetadataRecord: record type 2, versions 0, flexible 0+

field               type                   versions  meaning
topic_id_partition  TopicIdPartitionEntry  0+        Partition that is deleted.
  name              string                 0+        Name of the topic.
  id                uuid                   0+        Id of the topic.
  partition         int32                  0+        Number of the partition.
broker_id           int32                  0+        Broker id.
event_timestamp_ms  int64                  0+        Time in ms of this event.
remote_partition_delete_state  int8        0+        State of the deletion: 0 marked, 1 started, 2 finished.

RemoteLogSegmentMetadataSnapshotRecord: record type 3, versions 0, flexible 0+

field                     type   versions  null  tag  default  meaning
segment_id                uuid   0+        -     -    -        Id of the segment.
start_offset              int64  0+        -     -    -        First offset of the segment.
end_offset                int64  0+        -     -    -        Last offset of the segment.
broker_id                 int32  0+        -     -    -        Broker id.
max_timestamp_ms          int64  0+        -     -    -        Largest timestamp of the segment, in ms.
event_timestamp_ms        int64  0+        -     -    -        Time in ms of this event.
segment_leader_epochs     []SegmentLeaderEpochEntry  0+  -  -  -  Leader epochs in the segment, each with its first
                                                               offset.
  leader_epoch            int32  0+        -     -    -        Leader epoch.
  offset                  int64  0+        -     -    -        First offset of the epoch.
segment_size_in_bytes     int32  0+        -     -    -        Size of the segment in bytes.
custom_metadata           bytes  0+        0+    -    null     Bytes of the storage plugin; null if there are none.
remote_log_segment_state  int8   0+        -     -    -        State of the copy: 0 and 1 copying started and finished,
                                                               2 and 3 deleting started and finished.
txn_index_empty           bool   0+        -     0    -        Whether the segment has no aborted transactions.
"""

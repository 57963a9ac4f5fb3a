"""Records of `__share_group_state`. `kbatch.protocol.schema` explains the tables."""

STORED_SHARE_STATES_TABLES = """
ShareSnapshotKey: record type 0, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
topic_id   uuid    0         Id of the topic; zeros if unknown.
partition  int32   0         Number of the partition.

ShareSnapshotValue: record type 0, versions 0, flexible 0+

field                    type          versions  tag  default  meaning
snapshot_epoch           int32         0+        -    -        Epoch of the snapshot.
state_epoch              int32         0+        -    -        Epoch of the state of the share-partition.
leader_epoch             int32         0+        -    -        Leader epoch; -1 if unknown.
start_offset             int64         0+        -    -        First offset that is not delivered completely.
delivery_complete_count  int32         0+        0    -1       Number of records after the start offset that are
                                                               delivered completely; -1 if unknown.
create_timestamp         int64         0+        -    -        Time in ms at which the state was created.
write_timestamp          int64         0+        -    -        Time in ms at which the state was written.
state_batches            []StateBatch  0+        -    -        Delivery states of the ranges after the start offset.
  first_offset           int64         0+        -    -        First offset of the range.
  last_offset            int64         0+        -    -        Last offset of the range, inclusive.
  delivery_state         int8          0+        -    -        State of the range: 0 available, 2 acknowledged, 4
                                                               archived.
  delivery_count         int16         0+        -    -        How often the records have been delivered.

ShareUpdateKey: record type 1, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
topic_id   uuid    0         Id of the topic; zeros if unknown.
partition  int32   0         Number of the partition.

ShareUpdateValue: record type 1, versions 0, flexible 0+

field                    type          versions  tag  default  meaning
snapshot_epoch           int32         0+        -    -        Epoch of the snapshot.
leader_epoch             int32         0+        -    -        Leader epoch; -1 if unknown.
start_offset             int64         0+        -    -        First offset that is not delivered completely; -1 if
                                                               unchanged.
delivery_complete_count  int32         0+        0    -1       Number of records after the start offset that are
                                                               delivered completely; -1 if unknown.
state_batches            []StateBatch  0+        -    -        Delivery states of the ranges that have changed.
  first_offset           int64         0+        -    -        First offset of the range.
  last_offset            int64         0+        -    -        Last offset of the range, inclusive.
  delivery_state         int8          0+        -    -        State of the range: 0 available, 2 acknowledged, 4
                                                               archived.
  delivery_count         int16         0+        -    -        How often the records have been delivered.
"""

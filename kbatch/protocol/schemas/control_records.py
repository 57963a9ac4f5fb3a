"""Values of control records. `kbatch.protocol.schema` explains the tables."""

CONTROL_RECORDS_TABLES = """
EndTxnMarker: versions 0, flexible none

field              type   versions  meaning
coordinator_epoch  int32  0+        Epoch of the transaction coordinator.

LeaderChangeMessage: versions 0-1, flexible 0+

field                 type     versions  meaning
version               int16    0+        Version of the message.
leader_id             int32    0+        Id of the new leader.
voters                []Voter  0+        One entry per voter of the epoch.
  voter_id            int32    0+        Id of the voter.
  voter_directory_id  uuid     1+        Log directory of the voter.
granting_voters       []Voter  0+        One entry per voter that elected the leader.
  voter_id            int32    0+        Id of the voter.
  voter_directory_id  uuid     1+        Log directory of the voter.

SnapshotHeaderRecord: versions 0, flexible 0+

field                         type   versions  meaning
version                       int16  0+        Version of the message.
last_contained_log_timestamp  int64  0+        Time in ms at which the last record of the snapshot was appended.

SnapshotFooterRecord: versions 0, flexible 0+

field    type   versions  meaning
version  int16  0+        Version of the message.

KRaftVersionRecord: versions 0, flexible 0+

field           type   versions  meaning
version         int16  0+        Version of the message.
k_raft_version  int16  0+        Version of KRaft's protocol.

VotersRecord: versions 0, flexible 0+

field                     type                 versions  meaning
version                   int16                0+        Version of the message.
voters                    []Voter              0+        One entry per voter.
  voter_id                int32                0+        Id of the voter.
  voter_directory_id      uuid                 0+        Log directory of the voter.
  endpoints               []Endpoint           0+        Addresses of the voter.
    name                  string               0+        Name of the listener.
    host                  string               0+        Host name or address to connect to.
    port                  uint16               0+        Port to connect to.
  k_raft_version_feature  KRaftVersionFeature  0+        Versions of KRaft's protocol that the voter supports.
    min_supported_version  int16               0+        Lowest version.
    max_supported_version  int16               0+        Highest version.
"""

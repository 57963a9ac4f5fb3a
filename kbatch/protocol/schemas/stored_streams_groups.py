"""Records of streams groups in `__consumer_offsets`. `kbatch.protocol.schema` explains the tables."""

STORED_STREAMS_GROUPS_TABLES = """
StreamsGroupMetadataKey: record type 17, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

StreamsGroupMetadataValue: record type 17, versions 0, flexible 0+

field                     type                    versions  null  tag  default  meaning
epoch                     int32                   0+        -     -    -        Epoch of the group.
metadata_hash             int64                   0+        -     -    -        Hash of the topics that the group reads;
                                                                                0 if unknown.
validated_topology_epoch  int32                   0+        -     0    -1       Epoch of the topology that was checked
                                                                                against the topics; -1 if none was.
last_assignment_configs   []LastAssignmentConfig  0+        0+    1    -        Settings of the last assignment; null or
                                                                                empty if not stored.
  key                     string                  0+        -     -    -        Name of the setting.
  value                   string                  0+        -     -    -        Value of the setting; null if it has
                                                                                none.
stored_description_topology_epoch  int32          0+        -     2    -1       Epoch of the topology whose description
                                                                                is stored; -1 if none is, -2 if unknown.
failed_description_topology_epoch  int32          0+        -     3    -1       Epoch of the topology whose description
                                                                                was refused; -1 if none was.

StreamsGroupMemberMetadataKey: record type 19, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

StreamsGroupMemberMetadataValue: record type 19, versions 0, flexible 0+

field                 type        versions  null  default  meaning
instance_id           string      0+        0+    -        Id of a static member, chosen by the user; null for a dynamic
                                                           member.
rack_id               string      0+        0+    -        Rack of the member; null if it has none.
client_id             string      0+        -     -        Client id of the member.
client_host           string      0+        -     -        Address of the member.
rebalance_timeout_ms  int32       0+        -     -1       Time in ms that the member has to give up tasks; -1 if
                                                           unknown.
topology_epoch        int32       0+        -     -        Epoch of the topology.
process_id            string      0+        -     -        Id of the instance of the application.
user_endpoint         Endpoint    0+        0+    null     Address for interactive queries; null if there is none.
  host                string      0+        -     -        Host name or address to connect to.
  port                uint16      0+        -     -        Port to connect to.
client_tags           []KeyValue  0+        -     -        Tags of the member, for assignments across racks.
  key                 string      0+        -     -        Name of the tag.
  value               string      0+        -     -        Value of the tag.

StreamsGroupTargetAssignmentMetadataKey: record type 20, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

StreamsGroupTargetAssignmentMetadataValue: record type 20, versions 0, flexible 0+

field                 type   versions  tag  default  meaning
assignment_epoch      int32  0+        -    -        Epoch of the target assignment.
assignment_timestamp  int64  0+        0    0        Time in ms at which the assignment was computed; 0 if unknown.

StreamsGroupTargetAssignmentMemberKey: record type 21, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

StreamsGroupTargetAssignmentMemberValue: record type 21, versions 0, flexible 0+

field             type       versions  meaning
active_tasks      []TaskIds  0+        Tasks that the member processes.
  subtopology_id  string     0+        Id of the subtopology.
  partitions      []int32    0+        Numbers of the partitions.
standby_tasks     []TaskIds  0+        Tasks whose state the member copies.
  subtopology_id  string     0+        Id of the subtopology.
  partitions      []int32    0+        Numbers of the partitions.
warmup_tasks      []TaskIds  0+        Tasks whose state the member builds up before it gets them.
  subtopology_id  string     0+        Id of the subtopology.
  partitions      []int32    0+        Numbers of the partitions.

StreamsGroupCurrentMemberAssignmentKey: record type 22, versions 0, flexible none

field      type    versions  meaning
group_id   string  0         Id of the group.
member_id  string  0         Id of the member, chosen by the client.

StreamsGroupCurrentMemberAssignmentValue: record type 22, versions 0, flexible 0+

field                  type       versions  null  tag  meaning
member_epoch           int32      0+        -     -    Epoch of the member.
previous_member_epoch  int32      0+        -     -    Epoch of the member before the last change.
state                  int8       0+        -     -    State of the member, a code of Kafka's MemberState.
active_tasks           []TaskIds  0+        -     -    Tasks that the member processes.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.
standby_tasks          []TaskIds  0+        -     -    Tasks whose state the member copies.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.
warmup_tasks           []TaskIds  0+        -     -    Tasks whose state the member builds up before it gets them.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.
active_tasks_pending_revocation  []TaskIds  0+  -  -   Active tasks that the member has to give up.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.
standby_tasks_pending_revocation  []TaskIds  0+  -  -  Standby tasks that the member has to give up.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.
warmup_tasks_pending_revocation  []TaskIds  0+  -  -   Warm-up tasks that the member has to give up.
  subtopology_id       string     0+        -     -    Id of the subtopology.
  partitions           []int32    0+        -     -    Numbers of the partitions.
  assignment_epochs    []int32    0+        0+    0    Epoch of each assignment, one per partition; null or empty if not
                                                       stored.

StreamsGroupTopologyKey: record type 23, versions 0, flexible none

field     type    versions  meaning
group_id  string  0         Id of the group.

StreamsGroupTopologyValue: record type 23, versions 0, flexible 0+

field                        type                versions  meaning
epoch                        int32               0+        Epoch of the topology.
subtopologies                []Subtopology       0+        Parts of the topology that share no state.
  subtopology_id             string              0+        Id of the subtopology.
  source_topics              []string            0+        Topics that are read.
  source_topic_regex         []string            0+        Regular expressions of the topics that are read.
  state_changelog_topics     []TopicInfo         0+        Topics that record the changes of the state stores.
    name                     string              0+        Name of the topic.
    partitions               int32               0+        Number of partitions; 0 if any number will do.
    replication_factor       int16               0+        Number of replicas; 0 for the broker's default.
    topic_configs            []TopicConfig       0+        Settings of the topic.
      key                    string              0+        Name of the setting.
      value                  string              0+        Value of the setting; null if it has none.
  repartition_sink_topics    []string            0+        Topics that the subtopology writes for another one.
  repartition_source_topics  []TopicInfo         0+        Topics that another subtopology writes for this one.
    name                     string              0+        Name of the topic.
    partitions               int32               0+        Number of partitions; 0 if any number will do.
    replication_factor       int16               0+        Number of replicas; 0 for the broker's default.
    topic_configs            []TopicConfig       0+        Settings of the topic.
      key                    string              0+        Name of the setting.
      value                  string              0+        Value of the setting; null if it has none.
  copartition_groups         []CopartitionGroup  0+        Sets of topics whose partitions are assigned together.
    source_topics            []int16             0+        Positions in `source_topics` of the subtopology.
    source_topic_regex       []int16             0+        Positions in `source_topic_regex` of the subtopology.
    repartition_source_topics  []int16           0+        Positions in `repartition_source_topics` of the subtopology.
"""

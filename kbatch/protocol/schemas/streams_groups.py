"""Streams groups: membership, topologies and descriptions. `kbatch.protocol.schema` explains the tables."""

STREAMS_GROUPS_TABLES = """
StreamsGroupHeartbeatRequest: API key 88, versions 0-1, flexible 0+

field                        type                versions  null  default  meaning
group_id                     string              0+        -     -        Id of the group.
member_id                    string              0+        -     -        Id of the member, chosen by the client.
member_epoch                 int32               0+        -     -        Epoch of the member; 0 to join, -1 to leave,
                                                                          -2 for a static member that will return.
endpoint_information_epoch   int32               0+        -     -        Epoch of the endpoints that the member knows.
instance_id                  string              0+        0+    null     Id of a static member, chosen by the user;
                                                                          null for a dynamic member or if unchanged.
rack_id                      string              0+        0+    null     Rack of the member; null if it has none or it
                                                                          is unchanged.
rebalance_timeout_ms         int32               0+        -     -1       Time in ms that the member has to give up
                                                                          tasks; -1 if unchanged.
topology                     Topology            0+        0+    null     Topology of the application; null if
                                                                          unchanged.
  epoch                      int32               0+        -     -        Epoch of the topology.
  subtopologies              []Subtopology       0+        -     -        Parts of the topology that share no state.
    subtopology_id           string              0+        -     -        Id of the subtopology.
    source_topics            []string            0+        -     -        Topics that are read.
    source_topic_regex       []string            0+        -     -        Regular expressions of the topics that are
                                                                          read.
    state_changelog_topics   []TopicInfo         0+        -     -        Topics that record the changes of the state
                                                                          stores.
      name                   string              0+        -     -        Name of the topic.
      partitions             int32               0+        -     -        Number of partitions; 0 if any number will do.
      replication_factor     int16               0+        -     -        Number of replicas; 0 for the broker's
                                                                          default.
      topic_configs          []KeyValue          0+        -     -        Settings of the topic.
        key                  string              0+        -     -        Name of the setting.
        value                string              0+        -     -        Value of the setting.
    repartition_sink_topics  []string            0+        -     -        Topics that the subtopology writes for another
                                                                          one.
    repartition_source_topics  []TopicInfo       0+        -     -        Topics that another subtopology writes for
                                                                          this one.
      name                   string              0+        -     -        Name of the topic.
      partitions             int32               0+        -     -        Number of partitions; 0 if any number will do.
      replication_factor     int16               0+        -     -        Number of replicas; 0 for the broker's
                                                                          default.
      topic_configs          []KeyValue          0+        -     -        Settings of the topic.
        key                  string              0+        -     -        Name of the setting.
        value                string              0+        -     -        Value of the setting.
    copartition_groups       []CopartitionGroup  0+        -     -        Sets of topics whose partitions are assigned
                                                                          together.
      source_topics          []int16             0+        -     -        Positions in `source_topics` of the
                                                                          subtopology.
      source_topic_regex     []int16             0+        -     -        Positions in `source_topic_regex` of the
                                                                          subtopology.
      repartition_source_topics  []int16         0+        -     -        Positions in `repartition_source_topics` of
                                                                          the subtopology.
active_tasks                 []TaskIds           0+        0+    null     Tasks that the member processes; null if
                                                                          unchanged.
  subtopology_id             string              0+        -     -        Id of the subtopology.
  partitions                 []int32             0+        -     -        Numbers of the partitions.
standby_tasks                []TaskIds           0+        0+    null     Tasks whose state the member copies; null if
                                                                          unchanged.
  subtopology_id             string              0+        -     -        Id of the subtopology.
  partitions                 []int32             0+        -     -        Numbers of the partitions.
warmup_tasks                 []TaskIds           0+        0+    null     Tasks whose state the member builds up before
                                                                          it gets them; null if unchanged.
  subtopology_id             string              0+        -     -        Id of the subtopology.
  partitions                 []int32             0+        -     -        Numbers of the partitions.
process_id                   string              0+        0+    null     Id of the instance of the application; null if
                                                                          unchanged.
user_endpoint                Endpoint            0+        0+    null     Address for interactive queries; null if there
                                                                          is none or it is unchanged.
  host                       string              0+        -     -        Host name or address to connect to.
  port                       uint16              0+        -     -        Port to connect to.
client_tags                  []KeyValue          0+        0+    null     Tags of the member, for assignments across
                                                                          racks; null if unchanged.
  key                        string              0+        -     -        Name of the tag.
  value                      string              0+        -     -        Value of the tag.
task_offsets                 []TaskOffset        0+        0+    null     Offsets in the changelogs of the tasks, in
                                                                          sum; null if unchanged.
  subtopology_id             string              0+        -     -        Id of the subtopology.
  partition                  int32               0+        -     -        Number of the partition.
  offset                     int64               0+        -     -        Offset in the changelog.
task_end_offsets             []TaskOffset        0+        0+    null     End offsets of the changelogs of the tasks, in
                                                                          sum; null if unchanged.
  subtopology_id             string              0+        -     -        Id of the subtopology.
  partition                  int32               0+        -     -        Number of the partition.
  offset                     int64               0+        -     -        Offset in the changelog.
shutdown_application         bool                0+        -     false    Whether all instances of the application
                                                                          should shut down.

StreamsGroupHeartbeatResponse: API key 88, versions 0-1, flexible 0+

field                        type                    versions  null  default  skip  meaning
throttle_time_ms             int32                   0+        -     -        -     Time in ms that the broker delays
                                                                                    the client because of a quota.
error_code                   int16                   0+        -     -        -     Error of the whole request as a
                                                                                    `kbatch.ErrorCode`; 0 if none.
error_message                string                  0+        0+    null     -     Text of the error; null if there is
                                                                                    none.
member_id                    string                  0+        -     -        -     Id of the member, chosen by the
                                                                                    client.
member_epoch                 int32                   0+        -     -        -     Epoch of the member.
heartbeat_interval_ms        int32                   0+        -     -        -     Time in ms between the heartbeats of
                                                                                    the member.
acceptable_recovery_lag_legacy  int32                0         -     -        -     The same as
                                                                                    `acceptable_recovery_lag` in 32
                                                                                    bits, in version 0.
task_offset_interval_ms      int32                   0+        -     -        -     Time in ms between two reports of
                                                                                    offsets.
acceptable_recovery_lag      int64                   1+        -     -1       yes   Largest number of offsets that a
                                                                                    member may lag behind to count as
                                                                                    caught up with a task.
status                       []Status                0+        0+    -        -     What the member should know about
                                                                                    its group.
  status_code                int8                    0+        -     -        -     Code of the status.
  status_detail              string                  0+        -     -        -     Text of the status.
active_tasks                 []TaskIds               0+        0+    null     -     Tasks that the member processes;
                                                                                    null if unchanged.
  subtopology_id             string                  0+        -     -        -     Id of the subtopology.
  partitions                 []int32                 0+        -     -        -     Numbers of the partitions.
standby_tasks                []TaskIds               0+        0+    null     -     Tasks whose state the member copies;
                                                                                    null if unchanged.
  subtopology_id             string                  0+        -     -        -     Id of the subtopology.
  partitions                 []int32                 0+        -     -        -     Numbers of the partitions.
warmup_tasks                 []TaskIds               0+        0+    null     -     Tasks whose state the member builds
                                                                                    up before it gets them; null if
                                                                                    unchanged.
  subtopology_id             string                  0+        -     -        -     Id of the subtopology.
  partitions                 []int32                 0+        -     -        -     Numbers of the partitions.
topology_description_required  bool                  1+        -     false    -     Whether the broker lacks the
                                                                                    description of the topology.
endpoint_information_epoch   int32                   0+        -     -        -     Epoch of the endpoints in the
                                                                                    response.
partitions_by_user_endpoint  []EndpointToPartitions  0+        0+    null     -     Partitions behind each endpoint, one
                                                                                    entry per member.
  user_endpoint              Endpoint                0+        -     -        -     Address for interactive queries.
    host                     string                  0+        -     -        -     Host name or address to connect to.
    port                     uint16                  0+        -     -        -     Port to connect to.
  active_partitions          []TopicPartition        0+        -     -        -     Partitions that the active tasks
                                                                                    behind this endpoint read.
    topic                    string                  0+        -     -        -     Name of the topic.
    partitions               []int32                 0+        -     -        -     Numbers of the partitions.
  standby_partitions         []TopicPartition        0+        -     -        -     Partitions that the standby and
                                                                                    warm-up tasks behind this endpoint
                                                                                    read.
    topic                    string                  0+        -     -        -     Name of the topic.
    partitions               []int32                 0+        -     -        -     Numbers of the partitions.

StreamsGroupDescribeRequest: API key 89, versions 0-1, flexible 0+

field      type      versions  default  meaning
group_ids  []string  0+        -        Ids of the groups.
include_authorized_operations  bool  0+  -  Whether to return the allowed operations.
include_topology_description  bool  1+  false  Whether to return the full description of the topology.

StreamsGroupDescribeResponse: API key 89, versions 0-1, flexible 0+

field                       type                 versions  null  default  skip  meaning
throttle_time_ms            int32                0+        -     -        -     Time in ms that the broker delays the
                                                                                client because of a quota.
groups                      []DescribedGroup     0+        -     -        -     One entry per group.
  error_code                int16                0+        -     -        -     Error of this entry as a
                                                                                `kbatch.ErrorCode`; 0 if none.
  error_message             string               0+        0+    null     -     Text of the error; null if there is
                                                                                none.
  group_id                  string               0+        -     -        -     Id of the group.
  group_state               string               0+        -     -        -     State of the group, such as Stable;
                                                                                empty if unknown.
  group_epoch               int32                0+        -     -        -     Epoch of the group.
  assignment_epoch          int32                0+        -     -        -     Epoch of the target assignment.
  topology                  Topology             0+        0+    null     -     Topology of the application; null after
                                                                                an error.
    epoch                   int32                0+        -     -        -     Epoch of the topology.
    subtopologies           []Subtopology        0+        0+    null     -     Parts of the topology that share no
                                                                                state.
      subtopology_id        string               0+        -     -        -     Id of the subtopology.
      source_topics         []string             0+        -     -        -     Topics that are read.
      repartition_sink_topics  []string          0+        -     -        -     Topics that the subtopology writes for
                                                                                another one.
      state_changelog_topics  []TopicInfo        0+        -     -        -     Topics that record the changes of the
                                                                                state stores.
        name                string               0+        -     -        -     Name of the topic.
        partitions          int32                0+        -     -        -     Number of partitions; 0 if any number
                                                                                will do.
        replication_factor  int16                0+        -     -        -     Number of replicas; 0 for the broker's
                                                                                default.
        topic_configs       []KeyValue           0+        -     -        -     Settings of the topic.
          key               string               0+        -     -        -     Name of the setting.
          value             string               0+        -     -        -     Value of the setting.
      repartition_source_topics  []TopicInfo     0+        -     -        -     Topics that another subtopology writes
                                                                                for this one.
        name                string               0+        -     -        -     Name of the topic.
        partitions          int32                0+        -     -        -     Number of partitions; 0 if any number
                                                                                will do.
        replication_factor  int16                0+        -     -        -     Number of replicas; 0 for the broker's
                                                                                default.
        topic_configs       []KeyValue           0+        -     -        -     Settings of the topic.
          key               string               0+        -     -        -     Name of the setting.
          value             string               0+        -     -        -     Value of the setting.
  members                   []Member             0+        -     -        -     One entry per member.
    member_id               string               0+        -     -        -     Id of the member, chosen by the client.
    member_epoch            int32                0+        -     -        -     Epoch of the member.
    instance_id             string               0+        0+    null     -     Id of a static member, chosen by the
                                                                                user; null for a dynamic member.
    rack_id                 string               0+        0+    null     -     Rack of the member; null if it has none.
    client_id               string               0+        -     -        -     Client id of the member.
    client_host             string               0+        -     -        -     Address of the member.
    topology_epoch          int32                0+        -     -        -     Epoch of the topology.
    process_id              string               0+        -     -        -     Id of the instance of the application.
    user_endpoint           Endpoint             0+        0+    null     -     Address for interactive queries; null if
                                                                                there is none.
      host                  string               0+        -     -        -     Host name or address to connect to.
      port                  uint16               0+        -     -        -     Port to connect to.
    client_tags             []KeyValue           0+        -     -        -     Tags of the member, for assignments
                                                                                across racks.
      key                   string               0+        -     -        -     Name of the tag.
      value                 string               0+        -     -        -     Value of the tag.
    task_offsets            []TaskOffset         0+        -     -        -     Offsets in the changelogs of the tasks,
                                                                                in sum.
      subtopology_id        string               0+        -     -        -     Id of the subtopology.
      partition             int32                0+        -     -        -     Number of the partition.
      offset                int64                0+        -     -        -     Offset in the changelog.
    task_end_offsets        []TaskOffset         0+        -     -        -     End offsets of the changelogs of the
                                                                                tasks, in sum.
      subtopology_id        string               0+        -     -        -     Id of the subtopology.
      partition             int32                0+        -     -        -     Number of the partition.
      offset                int64                0+        -     -        -     Offset in the changelog.
    assignment              Assignment           0+        -     -        -     What is assigned to the member now.
      active_tasks          []TaskIds            0+        -     -        -     Tasks that the member processes.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
      standby_tasks         []TaskIds            0+        -     -        -     Tasks whose state the member copies.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
      warmup_tasks          []TaskIds            0+        -     -        -     Tasks whose state the member builds up
                                                                                before it gets them.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
    target_assignment       Assignment           0+        -     -        -     What will be assigned to the member.
      active_tasks          []TaskIds            0+        -     -        -     Tasks that the member processes.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
      standby_tasks         []TaskIds            0+        -     -        -     Tasks whose state the member copies.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
      warmup_tasks          []TaskIds            0+        -     -        -     Tasks whose state the member builds up
                                                                                before it gets them.
        subtopology_id      string               0+        -     -        -     Id of the subtopology.
        partitions          []int32              0+        -     -        -     Numbers of the partitions.
    is_classic              bool                 0+        -     -        -     Whether the member still uses the
                                                                                classic protocol.
  authorized_operations     int32                0+        -     -2147483648  -  Allowed operations as a bit field of
                                                                                ACL codes; -2147483648 if not requested.
  topology_description      TopologyDescription  1+        1+    null     -     Full description of the topology; null
                                                                                unless requested and known.
    subtopologies           []TopologyDescriptionSubtopology  1+  -  -    -     Parts of the topology that share no
                                                                                state.
      subtopology_id        string               1+        -     -        -     Id of the subtopology.
      nodes                 []TopologyDescriptionNode  1+  -     -        -     One entry per node.
        name                string               1+        -     -        -     Name of the node.
        node_type           int8                 1+        -     -        -     Kind of the node: 1 source, 2 processor,
                                                                                3 sink.
        source_topics       []string             1+        -     -        -     Topics that are read.
        sink_topic          string               1+        1+    null     -     Topic that a sink writes to; null if it
                                                                                depends on the record.
        stores              []string             1+        -     -        -     State stores that a processor uses.
        successors          []string             1+        -     -        -     Nodes that get the output of this one.
    global_stores           []TopologyDescriptionGlobalStore  1+  -  -    -     Stores that every instance holds
                                                                                completely.
      source                TopologyDescriptionNode  1+    -     -        -     Node that reads the topic of the store.
        name                string               1+        -     -        -     Name of the node.
        node_type           int8                 1+        -     -        -     Kind of the node: 1 source, 2 processor,
                                                                                3 sink.
        source_topics       []string             1+        -     -        -     Topics that are read.
        sink_topic          string               1+        1+    null     -     Topic that a sink writes to; null if it
                                                                                depends on the record.
        stores              []string             1+        -     -        -     State stores that a processor uses.
        successors          []string             1+        -     -        -     Nodes that get the output of this one.
      processor             TopologyDescriptionNode  1+    -     -        -     Node that fills the store.
        name                string               1+        -     -        -     Name of the node.
        node_type           int8                 1+        -     -        -     Kind of the node: 1 source, 2 processor,
                                                                                3 sink.
        source_topics       []string             1+        -     -        -     Topics that are read.
        sink_topic          string               1+        1+    null     -     Topic that a sink writes to; null if it
                                                                                depends on the record.
        stores              []string             1+        -     -        -     State stores that a processor uses.
        successors          []string             1+        -     -        -     Nodes that get the output of this one.
  topology_description_status  int8              1+        -     0        -     What is known of the description of the
                                                                                topology; 3 if it is there.
  assignor_name             string               1+        1+    null     yes   Name of the assignor.

StreamsGroupTopologyDescriptionUpdateRequest: API key 93, versions 0, flexible 0+

field                 type                 versions  null  default  meaning
group_id              string               0+        -     -        Id of the group.
member_id             string               0+        -     -        Id of the member, chosen by the client.
topology_epoch        int32                0+        -     -        Epoch of the topology.
topology_description  TopologyDescription  0+        -     -        Full description of the topology.
  subtopologies       []TopologyDescriptionSubtopology  0+  -  -    Parts of the topology that share no state.
    subtopology_id    string               0+        -     -        Id of the subtopology.
    nodes             []TopologyDescriptionNode  0+  -     -        One entry per node.
      name            string               0+        -     -        Name of the node.
      node_type       int8                 0+        -     -        Kind of the node: 1 source, 2 processor, 3 sink.
      source_topics   []string             0+        -     -        Topics that are read.
      sink_topic      string               0+        0+    null     Topic that a sink writes to; null if it depends on
                                                                    the record.
      stores          []string             0+        -     -        State stores that a processor uses.
      successors      []string             0+        -     -        Nodes that get the output of this one.
  global_stores       []TopologyDescriptionGlobalStore  0+  -  -    Stores that every instance holds completely.
    source            TopologyDescriptionNode  0+    -     -        Node that reads the topic of the store.
      name            string               0+        -     -        Name of the node.
      node_type       int8                 0+        -     -        Kind of the node: 1 source, 2 processor, 3 sink.
      source_topics   []string             0+        -     -        Topics that are read.
      sink_topic      string               0+        0+    null     Topic that a sink writes to; null if it depends on
                                                                    the record.
      stores          []string             0+        -     -        State stores that a processor uses.
      successors      []string             0+        -     -        Nodes that get the output of this one.
    processor         TopologyDescriptionNode  0+    -     -        Node that fills the store.
      name            string               0+        -     -        Name of the node.
      node_type       int8                 0+        -     -        Kind of the node: 1 source, 2 processor, 3 sink.
      source_topics   []string             0+        -     -        Topics that are read.
      sink_topic      string               0+        0+    null     Topic that a sink writes to; null if it depends on
                                                                    the record.
      stores          []string             0+        -     -        State stores that a processor uses.
      successors      []string             0+        -     -        Nodes that get the output of this one.

StreamsGroupTopologyDescriptionUpdateResponse: API key 93, versions 0, flexible 0+

field             type    versions  null  default  meaning
throttle_time_ms  int32   0+        -     -        Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    null     Text of the error; null if there is none.
"""

"""Consumer groups: membership and descriptions. `kbatch.protocol.schema` explains the tables."""

GROUPS_TABLES = """
JoinGroupRequest: API key 11, versions 0-9, flexible 6+

field                 type    versions  null  default  skip  meaning
group_id              string  0+        -     -        -     Id of the group.
session_timeout_ms    int32   0+        -     -        -     Time in ms without a heartbeat after which the member is
                                                             removed.
rebalance_timeout_ms  int32   1+        -     -1       yes   Time in ms that members have to join again in a rebalance;
                                                             -1 for the session timeout.
member_id             string  0+        -     -        -     Id of the member; empty if it has none yet.
group_instance_id     string  5+        5+    null     -     Id of a static member, chosen by the user; null for a
                                                             dynamic member.
protocol_type         string  0+        -     -        -     Kind of group, such as consumer.
protocols             []JoinGroupRequestProtocol  0+  -  -  -  Assignors that the member supports, preferred ones first.
  name                string  0+        -     -        -     Name of an assignor that the member supports.
  metadata            bytes   0+        -     -        -     Subscription, in the form of the group's protocol type.
reason                string  8+        8+    null     yes   Why the member joins or leaves; null if not stated.

JoinGroupResponse: API key 11, versions 0-9, flexible 6+

field                type    versions  null  default  skip  meaning
throttle_time_ms     int32   2+        -     -        yes   Time in ms that the broker delays the client because of a
                                                            quota.
error_code           int16   0+        -     -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                            none.
generation_id        int32   0+        -     -1       -     Generation of the group that the member is in.
protocol_type        string  7+        7+    null     yes   Kind of group, such as consumer.
protocol_name        string  0+        7+    -        -     Name of the assignor that the group has chosen.
leader               string  0+        -     -        -     Member id of the leader, which makes the assignment.
skip_assignment      bool    9+        -     false    -     Whether the leader must not make an assignment.
member_id            string  0+        -     -        -     Id of the member; empty if it has none yet.
members              []JoinGroupResponseMember  0+  -  -  -  Members and their subscriptions, for the leader only.
  member_id          string  0+        -     -        -     Id of the member; empty if it has none yet.
  group_instance_id  string  5+        5+    null     yes   Id of a static member, chosen by the user; null for a
                                                            dynamic member.
  metadata           bytes   0+        -     -        -     Subscription of the member, in the form of the group's
                                                            protocol type.

SyncGroupRequest: API key 14, versions 0-5, flexible 4+

field              type    versions  null  default  skip  meaning
group_id           string  0+        -     -        -     Id of the group.
generation_id      int32   0+        -     -        -     Generation of the group that the member is in.
member_id          string  0+        -     -        -     Id of the member; empty if it has none yet.
group_instance_id  string  3+        3+    null     -     Id of a static member, chosen by the user; null for a dynamic
                                                          member.
protocol_type      string  5+        5+    null     yes   Kind of group, such as consumer.
protocol_name      string  5+        5+    null     yes   Name of the assignor that the group has chosen.
assignments        []SyncGroupRequestAssignment  0+  -  -  -  Assignment of each member, sent by the leader only.
  member_id        string  0+        -     -        -     Member that gets the assignment.
  assignment       bytes   0+        -     -        -     Assignment, in the form of the group's protocol type.

SyncGroupResponse: API key 14, versions 0-5, flexible 4+

field             type    versions  null  default  skip  meaning
throttle_time_ms  int32   1+        -     -        yes   Time in ms that the broker delays the client because of a
                                                         quota.
error_code        int16   0+        -     -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
protocol_type     string  5+        5+    null     yes   Kind of group, such as consumer.
protocol_name     string  5+        5+    null     yes   Name of the assignor that the group has chosen.
assignment        bytes   0+        -     -        -     Assignment of this member, in the form of the group's protocol
                                                         type.

HeartbeatRequest: API key 12, versions 0-4, flexible 4+

field              type    versions  null  default  meaning
group_id           string  0+        -     -        Id of the group.
generation_id      int32   0+        -     -        Generation of the group that the member is in.
member_id          string  0+        -     -        Id of the member; empty if it has none yet.
group_instance_id  string  3+        3+    null     Id of a static member, chosen by the user; null for a dynamic
                                                    member.

HeartbeatResponse: API key 12, versions 0-4, flexible 4+

field             type   versions  skip  meaning
throttle_time_ms  int32  1+        yes   Time in ms that the broker delays the client because of a quota.
error_code        int16  0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.

LeaveGroupRequest: API key 13, versions 0-5, flexible 4+

field                type              versions  null  default  skip  meaning
group_id             string            0+        -     -        -     Id of the group.
member_id            string            0-2       -     -        -     Id of the member; empty if it has none yet.
members              []MemberIdentity  3+        -     -        -     Members that leave.
  member_id          string            3+        -     -        -     Id of the member; empty if it has none yet.
  group_instance_id  string            3+        3+    null     -     Id of a static member, chosen by the user; null
                                                                      for a dynamic member.
  reason             string            5+        5+    null     yes   Why the member joins or leaves; null if not
                                                                      stated.

LeaveGroupResponse: API key 13, versions 0-5, flexible 4+

field                type              versions  null  skip  meaning
throttle_time_ms     int32             1+        -     yes   Time in ms that the broker delays the client because of a
                                                             quota.
error_code           int16             0+        -     -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                             none.
members              []MemberResponse  3+        -     -     One entry per member.
  member_id          string            3+        -     -     Id of the member; empty if it has none yet.
  group_instance_id  string            3+        3+    -     Id of a static member, chosen by the user; null for a
                                                             dynamic member.
  error_code         int16             3+        -     -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.

ConsumerGroupHeartbeatRequest: API key 68, versions 0-1, flexible 0+

field                   type               versions  null  default  meaning
group_id                string             0+        -     -        Id of the group.
member_id               string             0+        -     -        Id of the member; empty if it has none yet.
member_epoch            int32              0+        -     -        Epoch of the member; 0 to join, -1 to leave, -2 for
                                                                    a static member that will return.
instance_id             string             0+        0+    null     Id of a static member, chosen by the user; null for
                                                                    a dynamic member or if unchanged.
rack_id                 string             0+        0+    null     Rack of the member; null if it has none or it is
                                                                    unchanged.
rebalance_timeout_ms    int32              0+        -     -1       Time in ms that the member has to join again or to
                                                                    give up partitions; -1 if unchanged.
subscribed_topic_names  []string           0+        0+    null     Topics that the member subscribes to; null if
                                                                    unchanged.
subscribed_topic_regex  string             1+        1+    null     Regular expression of topics that the member
                                                                    subscribes to; null if none or unchanged.
server_assignor         string             0+        0+    null     Assignor that the broker should use; null if not
                                                                    chosen or unchanged.
topic_partitions        []TopicPartitions  0+        0+    null     Partitions that the member owns; null if unchanged.
  topic_id              uuid               0+        -     -        Id of the topic; zeros if unknown.
  partitions            []int32            0+        -     -        Numbers of the partitions.

ConsumerGroupHeartbeatResponse: API key 68, versions 0-1, flexible 0+

field                  type               versions  null  default  meaning
throttle_time_ms       int32              0+        -     -        Time in ms that the broker delays the client because
                                                                   of a quota.
error_code             int16              0+        -     -        Error of the whole request as a `kbatch.ErrorCode`; 0
                                                                   if none.
error_message          string             0+        0+    null     Text of the error; null if there is none.
member_id              string             0+        0+    null     Id of the member; empty if it has none yet.
member_epoch           int32              0+        -     -        Epoch of the member.
heartbeat_interval_ms  int32              0+        -     -        Time in ms between two heartbeats of the member.
assignment             Assignment         0+        0+    null     New assignment of the member; null if it has not
                                                                   changed.
  topic_partitions     []TopicPartitions  0+        -     -        Partitions of the assignment, one entry per topic.
    topic_id           uuid               0+        -     -        Id of the topic; zeros if unknown.
    partitions         []int32            0+        -     -        Numbers of the partitions.

ConsumerGroupDescribeRequest: API key 69, versions 0-1, flexible 0+

field      type      versions  meaning
group_ids  []string  0+        Ids of the groups to describe.
include_authorized_operations  bool  0+  Whether to return the allowed operations of each group.

ConsumerGroupDescribeResponse: API key 69, versions 0-1, flexible 0+

field                       type               versions  null  default  skip  meaning
throttle_time_ms            int32              0+        -     -        -     Time in ms that the broker delays the
                                                                              client because of a quota.
groups                      []DescribedGroup   0+        -     -        -     One entry per group.
  error_code                int16              0+        -     -        -     Error of this entry as a
                                                                              `kbatch.ErrorCode`; 0 if none.
  error_message             string             0+        0+    null     -     Text of the error; null if there is none.
  group_id                  string             0+        -     -        -     Id of the group.
  group_state               string             0+        -     -        -     State of the group by name; empty after an
                                                                              error.
  group_epoch               int32              0+        -     -        -     Epoch of the group.
  assignment_epoch          int32              0+        -     -        -     Epoch of the target assignment.
  assignor_name             string             0+        -     -        -     Assignor that made the target assignment.
  members                   []Member           0+        -     -        -     One entry per member.
    member_id               string             0+        -     -        -     Id of the member; empty if it has none
                                                                              yet.
    instance_id             string             0+        0+    null     -     Id of a static member, chosen by the user;
                                                                              null for a dynamic member.
    rack_id                 string             0+        0+    null     -     Rack of the member; null if it has none.
    member_epoch            int32              0+        -     -        -     Epoch of the member.
    client_id               string             0+        -     -        -     Client id, chosen by the client.
    client_host             string             0+        -     -        -     Address that the client connects from.
    subscribed_topic_names  []string           0+        -     -        -     Topics that the member subscribes to.
    subscribed_topic_regex  string             0+        0+    null     -     Regular expression of topics that the
                                                                              member subscribes to; null if none or
                                                                              unchanged.
    assignment              Assignment         0+        -     -        -     Partitions that the member owns now.
      topic_partitions      []TopicPartitions  0+        -     -        -     Partitions of the assignment, one entry
                                                                              per topic.
        topic_id            uuid               0+        -     -        -     Id of the topic; zeros if unknown.
        topic_name          string             0+        -     -        -     Name of the topic.
        partitions          []int32            0+        -     -        -     Numbers of the partitions.
    target_assignment       Assignment         0+        -     -        -     Partitions assigned to the member.
      topic_partitions      []TopicPartitions  0+        -     -        -     Partitions of the assignment, one entry
                                                                              per topic.
        topic_id            uuid               0+        -     -        -     Id of the topic; zeros if unknown.
        topic_name          string             0+        -     -        -     Name of the topic.
        partitions          []int32            0+        -     -        -     Numbers of the partitions.
    member_type             int8               1+        -     -1       yes   Protocol of the member: 0 classic, 1
                                                                              consumer (KIP-848), -1 unknown.
  authorized_operations     int32              0+        -     -2147483648  -  Allowed operations as a bit field of ACL
                                                                              codes; -2147483648 if not requested.

DescribeGroupsRequest: API key 15, versions 0-6, flexible 5+

field   type      versions  meaning
groups  []string  0+        Ids of the groups to describe.
include_authorized_operations  bool  3+  Whether to return the allowed operations of each group.

DescribeGroupsResponse: API key 15, versions 0-6, flexible 5+

field                    type                    versions  null  default  skip  meaning
throttle_time_ms         int32                   1+        -     -        yes   Time in ms that the broker delays the
                                                                                client because of a quota.
groups                   []DescribedGroup        0+        -     -        -     One entry per group.
  error_code             int16                   0+        -     -        -     Error of this entry as a
                                                                                `kbatch.ErrorCode`; 0 if none.
  error_message          string                  6+        6+    null     -     Text of the error; null if there is
                                                                                none.
  group_id               string                  0+        -     -        -     Id of the group.
  group_state            string                  0+        -     -        -     State of the group by name; empty after
                                                                                an error.
  protocol_type          string                  0+        -     -        -     Kind of group, such as consumer.
  protocol_data          string                  0+        -     -        -     Name of the assignor, if the group has
                                                                                chosen one.
  members                []DescribedGroupMember  0+        -     -        -     One entry per member.
    member_id            string                  0+        -     -        -     Id of the member; empty if it has none
                                                                                yet.
    group_instance_id    string                  4+        4+    null     yes   Id of a static member, chosen by the
                                                                                user; null for a dynamic member.
    client_id            string                  0+        -     -        -     Client id, chosen by the client.
    client_host          string                  0+        -     -        -     Address that the client connects from.
    member_metadata      bytes                   0+        -     -        -     Subscription of the member, in the form
                                                                                of the group's protocol type.
    member_assignment    bytes                   0+        -     -        -     Assignment of the member, in the form of
                                                                                the group's protocol type.
  authorized_operations  int32                   3+        -     -2147483648  -  Allowed operations as a bit field of
                                                                                ACL codes; -2147483648 if not requested.

ListGroupsRequest: API key 16, versions 0-5, flexible 3+

field          type      versions  meaning
states_filter  []string  4+        States of the groups to list; empty for all.
types_filter   []string  5+        Kinds of the groups to list; empty for all.

ListGroupsResponse: API key 16, versions 0-5, flexible 3+

field             type           versions  skip  meaning
throttle_time_ms  int32          1+        yes   Time in ms that the broker delays the client because of a quota.
error_code        int16          0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
groups            []ListedGroup  0+        -     One entry per group.
  group_id        string         0+        -     Id of the group.
  protocol_type   string         0+        -     Kind of group, such as consumer.
  group_state     string         4+        yes   State of the group by name; empty after an error.
  group_type      string         5+        yes   Kind of the group by name, such as classic or consumer.

DeleteGroupsRequest: API key 42, versions 0-3, flexible 2+

field         type      versions  meaning
groups_names  []string  0+        Ids of the groups to delete.

DeleteGroupsResponse: API key 42, versions 0-3, flexible 2+

field             type                    versions  null  default  skip  meaning
throttle_time_ms  int32                   0+        -     -        -     Time in ms that the broker delays the client
                                                                         because of a quota.
results           []DeletableGroupResult  0+        -     -        -     One entry per group.
  group_id        string                  0+        -     -        -     Id of the group.
  error_code      int16                   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0
                                                                         if none.
  error_message   string                  3+        3+    null     yes   Text of the error; null if there is none.
"""

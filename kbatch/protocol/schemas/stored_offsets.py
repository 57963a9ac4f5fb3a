"""Records of commits, classic groups and transactional ids. `kbatch.protocol.schema` explains the tables.

Record type 0 of `__consumer_offsets`, of the first brokers that stored commits, has the fields of type 1.
"""

STORED_OFFSETS_TABLES = """
OffsetCommitKey: record type 1, versions 0, flexible none

field      type    versions  meaning
group      string  0         Id of the group.
topic      string  0         Name of the topic.
partition  int32   0         Number of the partition.

OffsetCommitValue: record type 1, versions 0-4, flexible 4+

field             type    versions  tag  default  skip  meaning
offset            int64   0+        -    -        -     Offset of the next record that the group reads.
leader_epoch      int32   3+        -    -1       yes   Leader epoch of the record before; -1 if unknown.
metadata          string  0+        -    -        -     Text of the client.
commit_timestamp  int64   0+        -    -        -     Time in ms of the commit.
expire_timestamp  int64   1         -    -1       yes   Time in ms at which the commit expires; -1 if unknown.
topic_id          uuid    4+        0    -        yes   Id of the topic; zeros if unknown.

GroupMetadataKey: record type 2, versions 0, flexible none

field  type    versions  meaning
group  string  0         Id of the group.

GroupMetadataValue: record type 2, versions 0-4, flexible 4+

field                    type              versions  null  default  skip  meaning
protocol_type            string            0+        -     -        -     What the members are, such as consumer.
generation               int32             0+        -     -        -     Generation of the group.
protocol                 string            0+        0+    -        -     Assignor that the members agreed on; null if
                                                                          there is none.
leader                   string            0+        0+    -        -     Id of the member that assigns partitions; null
                                                                          if there is none.
current_state_timestamp  int64             2+        -     -1       yes   Time in ms of the last change of state; -1 if
                                                                          unknown.
members                  []MemberMetadata  0+        -     -        -     One entry per member.
  member_id              string            0+        -     -        -     Id of the member.
  group_instance_id      string            3+        3+    null     yes   Id of a static member, chosen by the user;
                                                                          null for others.
  client_id              string            0+        -     -        -     Client id of the member.
  client_host            string            0+        -     -        -     Host of the member.
  rebalance_timeout      int32             1+        -     -1       yes   Time in ms that the member has for a
                                                                          rebalance; -1 if unknown.
  session_timeout        int32             0+        -     -        -     Time in ms without a heartbeat after which the
                                                                          member is removed.
  subscription           bytes             0+        -     -        -     Subscription, in the form of the protocol.
  assignment             bytes             0+        -     -        -     Assignment, in the form of the protocol.

TransactionLogKey: record type 0, versions 0, flexible none

field             type    versions  meaning
transactional_id  string  0         Transactional id of the producer.

TransactionLogValue: record type 0, versions 0-1, flexible 1+

field                    type                versions  null  tag  default  meaning
producer_id              int64               0+        -     -    -        Producer id of the transactional id.
previous_producer_id     int64               1+        -     0    -1       Producer id of the last committed
                                                                           transaction; -1 if it is the same.
next_producer_id         int64               1+        -     1    -1       Producer id that the producer got last; -1 if
                                                                           it is the same.
producer_epoch           int16               0+        -     -    -        Epoch of the producer id.
next_producer_epoch      int16               1+        -     3    -1       Epoch of `next_producer_id`; -1 if there is
                                                                           none.
transaction_timeout_ms   int32               0+        -     -    -        Time in ms after which a transaction is
                                                                           aborted.
transaction_status       int8                0+        -     -    -        State of the transaction: 0 empty, 1 ongoing,
                                                                           2 and 3 ending, 4 and 5 ended, and others.
transaction_partitions   []PartitionsSchema  0+        0+    -    -        Partitions with records of the transaction;
                                                                           null if it is empty.
  topic                  string              0+        -     -    -        Name of the topic.
  partition_ids          []int32             0+        -     -    -        Numbers of the partitions.
transaction_last_update_timestamp_ms  int64  0+        -     -    -        Time in ms of this state.
transaction_start_timestamp_ms        int64  0+        -     -    -        Time in ms at which the transaction began; -1
                                                                           if there is none.
client_transaction_version            int16  1+        -     2    0        Version of transactions that the client has.
"""

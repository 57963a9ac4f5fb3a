"""Producer ids and transactions. `kbatch.protocol.schema` explains the tables."""

TRANSACTIONS_TABLES = """
InitProducerIdRequest: API key 22, versions 0-6, flexible 2+

field                   type    versions  null  default  meaning
transactional_id        string  0+        0+    -        Transactional id; null for a producer that is only idempotent.
transaction_timeout_ms  int32   0+        -     -        Time in ms after which the broker aborts a transaction.
producer_id             int64   3+        -     -1       Current id of the producer; -1 if it has none yet.
producer_epoch          int16   3+        -     -1       Current epoch of the producer; -1 if it has none yet.
enable2_pc              bool    6+        -     false    Whether the client takes part in two-phase commits.
keep_prepared_txn       bool    6+        -     false    Whether a prepared transaction of the producer survives this
                                                         request.

InitProducerIdResponse: API key 22, versions 0-6, flexible 2+

field                       type   versions  default  skip  meaning
throttle_time_ms            int32  0+        -        yes   Time in ms that the broker delays the client because of a
                                                            quota.
error_code                  int16  0+        -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                            none.
producer_id                 int64  0+        -1       -     Id of the producer.
producer_epoch              int16  0+        -        -     Epoch of the producer; 0 for a new one.
ongoing_txn_producer_id     int64  6+        -1       -     Id of the producer with a transaction in progress; -1 if
                                                            none.
ongoing_txn_producer_epoch  int16  6+        -1       -     Epoch of the producer with a transaction in progress; -1 if
                                                            none.

AddPartitionsToTxnRequest: API key 24, versions 0-5, flexible 3+

field                        type     versions  default  meaning
transactions                 []AddPartitionsToTxnTransaction  4+  -  Transactions to add partitions to.
  transactional_id           string   4+        -        Transactional id of the producer.
  producer_id                int64    4+        -        Id of the producer.
  producer_epoch             int16    4+        -        Epoch of the producer.
  verify_only                bool     4+        false    Whether to check that the partitions are part of the
                                                         transaction rather than add them.
  topics                     []AddPartitionsToTxnTopic  4+  -  One entry per topic.
    name                     string   0+        -        Name of the topic.
    partitions               []int32  0+        -        Numbers of the partitions.
v3_and_below_transactional_id  string  0-3      -        Transactional id of the producer, up to version 3.
v3_and_below_producer_id     int64    0-3       -        Id of the producer, up to version 3.
v3_and_below_producer_epoch  int16    0-3       -        Epoch of the producer, up to version 3.
v3_and_below_topics          []AddPartitionsToTxnTopic  0-3  -  Partitions to add, one entry per topic, up to version 3.
  name                       string   0+        -        Name of the topic.
  partitions                 []int32  0+        -        Numbers of the partitions.

AddPartitionsToTxnResponse: API key 24, versions 0-5, flexible 3+

field                       type    versions  skip  meaning
throttle_time_ms            int32   0+        -     Time in ms that the broker delays the client because of a quota.
error_code                  int16   4+        yes   Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
results_by_transaction      []AddPartitionsToTxnResult  4+  -  One entry per transactional id.
  transactional_id          string  4+        -     Transactional id of the producer.
  topic_results             []AddPartitionsToTxnTopicResult  4+  -  One entry per topic.
    name                    string  0+        -     Name of the topic.
    results_by_partition    []AddPartitionsToTxnPartitionResult  0+  -  One entry per partition.
      partition_index       int32   0+        -     Number of the partition.
      partition_error_code  int16   0+        -     Error of the partition as a `kbatch.ErrorCode`; 0 if none.
results_by_topic_v3_and_below  []AddPartitionsToTxnTopicResult  0-3  -  One entry per topic, up to version 3.
  name                      string  0+        -     Name of the topic.
  results_by_partition      []AddPartitionsToTxnPartitionResult  0+  -  One entry per partition.
    partition_index         int32   0+        -     Number of the partition.
    partition_error_code    int16   0+        -     Error of the partition as a `kbatch.ErrorCode`; 0 if none.

AddOffsetsToTxnRequest: API key 25, versions 0-4, flexible 3+

field             type    versions  meaning
transactional_id  string  0+        Transactional id of the producer.
producer_id       int64   0+        Id of the producer.
producer_epoch    int16   0+        Epoch of the producer.
group_id          string  0+        Id of the group.

AddOffsetsToTxnResponse: API key 25, versions 0-4, flexible 3+

field             type   versions  meaning
throttle_time_ms  int32  0+        Time in ms that the broker delays the client because of a quota.
error_code        int16  0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.

EndTxnRequest: API key 26, versions 0-5, flexible 3+

field             type    versions  meaning
transactional_id  string  0+        Transactional id of the producer.
producer_id       int64   0+        Id of the producer.
producer_epoch    int16   0+        Epoch of the producer.
committed         bool    0+        True to commit, false to abort.

EndTxnResponse: API key 26, versions 0-5, flexible 3+

field             type   versions  default  skip  meaning
throttle_time_ms  int32  0+        -        -     Time in ms that the broker delays the client because of a quota.
error_code        int16  0+        -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
producer_id       int64  5+        -1       yes   Id for the next transaction; -1 if unchanged.
producer_epoch    int16  5+        -1       yes   Epoch for the next transaction; -1 if unchanged.

TxnOffsetCommitRequest: API key 28, versions 0-6, flexible 3+

field                       type    versions  null  default  skip  meaning
transactional_id            string  0+        -     -        -     Transactional id of the producer.
group_id                    string  0+        -     -        -     Id of the group.
producer_id                 int64   0+        -     -        -     Id of the producer.
producer_epoch              int16   0+        -     -        -     Epoch of the producer.
generation_id_or_member_epoch  int32  3+      -     -1       -     Generation of a classic group, or member epoch; -1
                                                                   outside of a group.
member_id                   string  3+        -     -        -     Id of the member; empty if it has none yet.
group_instance_id           string  3+        3+    null     -     Id of a static member, chosen by the user; null for a
                                                                   dynamic member.
topics                      []TxnOffsetCommitRequestTopic  0+  -  -  -  One entry per topic.
  name                      string  0-5       -     -        yes   Name of the topic.
  topic_id                  uuid    6+        -     -        yes   Id of the topic; zeros if unknown.
  partitions                []TxnOffsetCommitRequestPartition  0+  -  -  -  One entry per partition.
    partition_index         int32   0+        -     -        -     Number of the partition.
    committed_offset        int64   0+        -     -        -     Offset of the next record to consume.
    committed_leader_epoch  int32   2+        -     -1       yes   Leader epoch of the last record consumed; -1 if
                                                                   unknown.
    committed_metadata      string  0+        0+    -        -     Text that the client stores with the offset.

TxnOffsetCommitResponse: API key 28, versions 0-6, flexible 3+

field                type    versions  skip  meaning
throttle_time_ms     int32   0+        -     Time in ms that the broker delays the client because of a quota.
topics               []TxnOffsetCommitResponseTopic  0+  -  One entry per topic.
  name               string  0-5       yes   Name of the topic.
  topic_id           uuid    6+        yes   Id of the topic; zeros if unknown.
  partitions         []TxnOffsetCommitResponsePartition  0+  -  One entry per partition.
    partition_index  int32   0+        -     Number of the partition.
    error_code       int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
"""

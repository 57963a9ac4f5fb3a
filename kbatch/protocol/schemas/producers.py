"""Transactions and producers, for administrators. `kbatch.protocol.schema` explains the tables."""

PRODUCERS_TABLES = """
WriteTxnMarkersRequest: API key 27, versions 0-2, flexible 1+

field                  type                 versions  default  skip  meaning
markers                []WritableTxnMarker  0+        -        -     One entry per producer.
  producer_id          int64                0+        -        -     Id of the producer.
  producer_epoch       int16                0+        -        -     Epoch of the producer.
  transaction_result   bool                 0+        -        -     True to commit, false to abort.
  topics               []WritableTxnMarkerTopic  0+   -        -     One entry per topic.
    name               string               0+        -        -     Name of the topic.
    partition_indexes  []int32              0+        -        -     Numbers of the partitions.
  coordinator_epoch    int32                0+        -        -     Epoch of the transaction coordinator.
  transaction_version  int8                 2+        0        yes   Version of the transaction protocol: 0 and 1 before
                                                                     KIP-890, 2 after it.

WriteTxnMarkersResponse: API key 27, versions 0-2, flexible 1+

field                  type    versions  meaning
markers                []WritableTxnMarkerResult  0+  One entry per producer.
  producer_id          int64   0+        Id of the producer.
  topics               []WritableTxnMarkerTopicResult  0+  One entry per topic.
    name               string  0+        Name of the topic.
    partitions         []WritableTxnMarkerPartitionResult  0+  One entry per partition.
      partition_index  int32   0+        Number of the partition.
      error_code       int16   0+        Error of this entry as a `kbatch.ErrorCode`; 0 if none.

DescribeProducersRequest: API key 61, versions 0, flexible 0+

field                type            versions  meaning
topics               []TopicRequest  0+        One entry per topic.
  name               string          0+        Name of the topic.
  partition_indexes  []int32         0+        Numbers of the partitions.

DescribeProducersResponse: API key 61, versions 0, flexible 0+

field                    type                 versions  null  default  meaning
throttle_time_ms         int32                0+        -     -        Time in ms that the broker delays the client
                                                                       because of a quota.
topics                   []TopicResponse      0+        -     -        One entry per topic.
  name                   string               0+        -     -        Name of the topic.
  partitions             []PartitionResponse  0+        -     -        One entry per partition.
    partition_index      int32                0+        -     -        Number of the partition.
    error_code           int16                0+        -     -        Error of this entry as a `kbatch.ErrorCode`; 0 if
                                                                       none.
    error_message        string               0+        0+    null     Text of the error; null if there is none.
    active_producers     []ProducerState      0+        -     -        Producers whose state the broker holds.
      producer_id        int64                0+        -     -        Id of the producer.
      producer_epoch     int32                0+        -     -        Epoch of the producer.
      last_sequence      int32                0+        -     -1       Sequence number of the last record; -1 if there
                                                                       is none.
      last_timestamp     int64                0+        -     -1       Time in ms of the last batch.
      coordinator_epoch  int32                0+        -     -        Epoch of the transaction coordinator.
      current_txn_start_offset  int64         0+        -     -1       First offset of the open transaction; -1 if there
                                                                       is none.

DescribeTransactionsRequest: API key 65, versions 0, flexible 0+

field              type      versions  meaning
transactional_ids  []string  0+        Transactional ids to describe.

DescribeTransactionsResponse: API key 65, versions 0, flexible 0+

field                        type                versions  meaning
throttle_time_ms             int32               0+        Time in ms that the broker delays the client because of a
                                                           quota.
transaction_states           []TransactionState  0+        One entry per transaction.
  error_code                 int16               0+        Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  transactional_id           string              0+        Transactional id of the producer.
  transaction_state          string              0+        State of the transaction, such as Ongoing.
  transaction_timeout_ms     int32               0+        Time in ms after which the transaction is aborted.
  transaction_start_time_ms  int64               0+        Time in ms at which the transaction began; -1 if there is
                                                           none.
  producer_id                int64               0+        Id of the producer.
  producer_epoch             int16               0+        Epoch of the producer.
  topics                     []TopicData         0+        One entry per topic.
    topic                    string              0+        Name of the topic.
    partitions               []int32             0+        Numbers of the partitions.

ListTransactionsRequest: API key 66, versions 0-2, flexible 0+

field                     type      versions  null  default  meaning
state_filters             []string  0+        -     -        States of the transactions to list; empty for all.
producer_id_filters       []int64   0+        -     -        Producers whose transactions to list; empty for all.
duration_filter           int64     1+        -     -1       Shortest time in ms that a transaction has been open;
                                                             negative for all.
transactional_id_pattern  string    2+        2+    null     Regular expression of transactional ids; null or empty for
                                                             all.

ListTransactionsResponse: API key 66, versions 0-2, flexible 0+

field                  type                versions  meaning
throttle_time_ms       int32               0+        Time in ms that the broker delays the client because of a quota.
error_code             int16               0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
unknown_state_filters  []string            0+        States of the request that the broker does not know.
transaction_states     []TransactionState  0+        One entry per transaction.
  transactional_id     string              0+        Transactional id of the producer.
  producer_id          int64               0+        Id of the producer.
  transaction_state    string              0+        State of the transaction, such as Ongoing.
"""

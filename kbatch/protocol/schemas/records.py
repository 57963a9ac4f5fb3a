"""Records, written and read. `kbatch.protocol.schema` explains the tables."""

RECORDS_TABLES = """
ProduceRequest: API key 0, versions 0-13, flexible 9+

field             type                    versions  null  default  skip  meaning
transactional_id  string                  3+        3+    null     -     Transactional id of the producer; null
                                                                         outside of a transaction.
acks              int16                   0+        -     -        -     Replicas that must have the records before the
                                                                         response: 0, 1, or -1 for all in sync.
timeout_ms        int32                   0+        -     -        -     Time in ms that the broker may take.
topic_data        []TopicProduceData      0+        -     -        -     One entry per topic.
  name            string                  0-12      -     -        yes   Name of the topic.
  topic_id        uuid                    13+       -     -        yes   Id of the topic; zeros if unknown.
  partition_data  []PartitionProduceData  0+        -     -        -     One entry per partition.
    index         int32                   0+        -     -        -     Number of the partition.
    records       records                 0+        0+    -        -     Record batches; `kbatch.decode` reads them.

ProduceResponse: API key 0, versions 0-13, flexible 9+

field                   type                    versions  null  tag  default  skip  meaning
responses               []TopicProduceResponse  0+        -     -    -        -     One entry per topic.
  name                  string                  0-12      -     -    -        yes   Name of the topic.
  topic_id              uuid                    13+       -     -    -        yes   Id of the topic; zeros if unknown.
  partition_responses   []PartitionProduceResponse  0+    -     -    -        -     One entry per partition.
    index               int32                   0+        -     -    -        -     Number of the partition.
    error_code          int16                   0+        -     -    -        -     Error of this entry as a
                                                                                    `kbatch.ErrorCode`; 0 if none.
    base_offset         int64                   0+        -     -    -        -     Offset of the first record; -1 if
                                                                                    nothing was appended.
    log_append_time_ms  int64                   2+        -     -    -1       yes   Append time in ms, as set by the
                                                                                    broker; -1 if the records keep their
                                                                                    timestamps.
    log_start_offset    int64                   5+        -     -    -1       yes   First offset of the log; -1 if
                                                                                    unknown.
    record_errors       []BatchIndexAndErrorMessage  8+   -     -    -        yes   Records that caused the broker to
                                                                                    refuse the batch.
      batch_index       int32                   8+        -     -    -        -     Number of the record in its batch.
      batch_index_error_message  string         8+        8+    -    null     -     Why this record was refused; null if
                                                                                    the broker gives no reason.
    error_message       string                  8+        8+    -    null     yes   Text of the error; null if there is
                                                                                    none.
    current_leader      LeaderIdAndEpoch        10+       -     0    -        -     Leader to contact after an error
                                                                                    about leadership.
      leader_id         int32                   10+       -     -    -1       -     Broker id of the leader; -1 if there
                                                                                    is none or it is unknown.
      leader_epoch      int32                   10+       -     -    -1       -     Leader epoch; -1 if unknown.
throttle_time_ms        int32                   1+        -     -    0        yes   Time in ms that the broker delays
                                                                                    the client because of a quota.
node_endpoints          []NodeEndpoint          10+       -     0    -        -     Addresses of the leaders in
                                                                                    `current_leader`.
  node_id               int32                   10+       -     -    -        -     Broker id.
  host                  string                  10+       -     -    -        -     Host name or address to connect to.
  port                  int32                   10+       -     -    -        -     Port to connect to.
  rack                  string                  10+       10+   -    null     -     Rack of the broker; null if it has
                                                                                    none.

FetchRequest: API key 1, versions 0-18, flexible 12+

field                     type              versions  null  tag  default  skip  meaning
cluster_id                string            12+       12+   0    null     yes   Cluster that the follower belongs to;
                                                                                null if unknown.
replica_id                int32             0-14      -     -    -1       -     Broker id of a follower; -1 from a
                                                                                client.
replica_state             ReplicaState      15+       -     1    -        -     Broker id and epoch of a follower.
  replica_id              int32             15+       -     -    -1       -     Broker id of a follower; -1 from a
                                                                                client.
  replica_epoch           int64             15+       -     -    -1       -     Broker epoch of the follower; -1 if
                                                                                unknown.
max_wait_ms               int32             0+        -     -    -        -     Time in ms to wait until there are
                                                                                `min_bytes`.
min_bytes                 int32             0+        -     -    -        -     Size in bytes at which the broker
                                                                                responds before `max_wait_ms`.
max_bytes                 int32             3+        -     -    2147483647  yes  Size in bytes that the whole response
                                                                                should not exceed.
isolation_level           int8              4+        -     -    0        yes   0 read_uncommitted, 1 read_committed.
session_id                int32             7+        -     -    0        yes   Id of the fetch session; 0 if there is
                                                                                none.
session_epoch             int32             7+        -     -    -1       yes   Number of the request in its fetch
                                                                                session; -1 without a session, 0 to
                                                                                begin one.
topics                    []FetchTopic      0+        -     -    -        -     One entry per topic.
  topic                   string            0-12      -     -    -        yes   Name of the topic.
  topic_id                uuid              13+       -     -    -        yes   Id of the topic; zeros if unknown.
  partitions              []FetchPartition  0+        -     -    -        -     One entry per partition.
    partition             int32             0+        -     -    -        -     Number of the partition.
    current_leader_epoch  int32             9+        -     -    -1       yes   Leader epoch that the client knows,
                                                                                checked by the broker; -1 to skip the
                                                                                check.
    fetch_offset          int64             0+        -     -    -        -     Offset of the first record to return.
    last_fetched_epoch    int32             12+       -     -    -1       -     Leader epoch of the last record that the
                                                                                follower has; -1 if none.
    log_start_offset      int64             5+        -     -    -1       yes   First offset that the follower's log
                                                                                has; -1 from a consumer.
    partition_max_bytes   int32             0+        -     -    -        -     Size in bytes that the records of the
                                                                                partition should not exceed.
    replica_directory_id  uuid              17+       -     0    -        yes   Log directory of the follower.
    high_watermark        int64             18+       -     1    9223372036854775807  yes  High watermark that the
                                                                                follower knows; the maximum of int64 if
                                                                                unknown.
forgotten_topics_data     []ForgottenTopic  7+        -     -    -        -     Partitions to remove from the fetch
                                                                                session.
  topic                   string            7-12      -     -    -        yes   Name of the topic.
  topic_id                uuid              13+       -     -    -        yes   Id of the topic; zeros if unknown.
  partitions              []int32           7+        -     -    -        -     Partitions to remove.
rack_id                   string            11+       -     -    -        yes   Rack of the consumer; empty if it has
                                                                                none.

FetchResponse: API key 1, versions 0-18, flexible 12+

field                       type                  versions  null  tag  default  skip  meaning
throttle_time_ms            int32                 1+        -     -    -        yes   Time in ms that the broker delays
                                                                                      the client because of a quota.
error_code                  int16                 7+        -     -    -        yes   Error of the whole request as a
                                                                                      `kbatch.ErrorCode`; 0 if none.
session_id                  int32                 7+        -     -    0        -     Id of the fetch session; 0 if
                                                                                      there is none.
responses                   []FetchableTopicResponse  0+    -     -    -        -     One entry per topic.
  topic                     string                0-12      -     -    -        yes   Name of the topic.
  topic_id                  uuid                  13+       -     -    -        yes   Id of the topic; zeros if unknown.
  partitions                []PartitionData       0+        -     -    -        -     One entry per partition.
    partition_index         int32                 0+        -     -    -        -     Number of the partition.
    error_code              int16                 0+        -     -    -        -     Error of this entry as a
                                                                                      `kbatch.ErrorCode`; 0 if none.
    high_watermark          int64                 0+        -     -    -        -     Offset after the last replicated
                                                                                      record; consumers read up to it.
    last_stable_offset      int64                 4+        -     -    -1       yes   First offset of the oldest open
                                                                                      transaction; readers of
                                                                                      read_committed end here.
    log_start_offset        int64                 5+        -     -    -1       yes   First offset of the log; -1 if
                                                                                      unknown.
    diverging_epoch         EpochEndOffset        12+       -     0    -        -     Leader epoch, with its end offset,
                                                                                      at which the follower's log
                                                                                      begins to differ.
      epoch                 int32                 12+       -     -    -1       -     Leader epoch; -1 if unknown.
      end_offset            int64                 12+       -     -    -1       -     End offset of the epoch; -1 if
                                                                                      unknown.
    current_leader          LeaderIdAndEpoch      12+       -     1    -        -     Leader to contact after an error
                                                                                      about leadership.
      leader_id             int32                 12+       -     -    -1       -     Broker id of the leader; -1 if
                                                                                      there is none or it is unknown.
      leader_epoch          int32                 12+       -     -    -1       -     Leader epoch; -1 if unknown.
    snapshot_id             SnapshotId            12+       -     2    -        -     Snapshot that the follower must
                                                                                      fetch instead.
      end_offset            int64                 0+        -     -    -1       -     First offset after the snapshot.
      epoch                 int32                 0+        -     -    -1       -     Leader epoch of the snapshot; -1
                                                                                      if there is none.
    aborted_transactions    []AbortedTransaction  4+        4+    -    -        yes   Aborted transactions with records
                                                                                      in this range, in order of first
                                                                                      offset; null unless
                                                                                      read_committed.
      producer_id           int64                 4+        -     -    -        -     Producer of the aborted
                                                                                      transaction.
      first_offset          int64                 4+        -     -    -        -     First offset of the aborted
                                                                                      transaction in this partition.
    preferred_read_replica  int32                 11+       -     -    -1       -     Broker id of the replica to fetch
                                                                                      from next; -1 for the leader.
    records                 records               0+        0+    -    -        -     Record batches; `kbatch.decode`
                                                                                      reads them.
node_endpoints              []NodeEndpoint        16+       -     0    -        -     Addresses of the leaders in
                                                                                      `current_leader`.
  node_id                   int32                 16+       -     -    -        -     Broker id.
  host                      string                16+       -     -    -        -     Host name or address to connect
                                                                                      to.
  port                      int32                 16+       -     -    -        -     Port to connect to.
  rack                      string                16+       16+   -    null     -     Rack of the broker; null if it has
                                                                                      none.
"""

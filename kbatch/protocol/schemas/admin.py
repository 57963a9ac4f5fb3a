"""Topics, records and settings, for administrators. `kbatch.protocol.schema` explains the tables."""

ADMIN_TABLES = """
CreateTopicsRequest: API key 19, versions 0-7, flexible 5+

field                 type                    versions  null  default  meaning
topics                []CreatableTopic        0+        -     -        Topics to create.
  name                string                  0+        -     -        Name of the topic.
  num_partitions      int32                   0+        -     -        Number of partitions; -1 for the broker's default
                                                                       or a manual assignment.
  replication_factor  int16                   0+        -     -        Number of replicas; -1 for the broker's default
                                                                       or a manual assignment.
  assignments         []CreatableReplicaAssignment  0+  -     -        Brokers of each partition, if chosen by hand;
                                                                       otherwise empty.
    partition_index   int32                   0+        -     -        Number of the partition.
    broker_ids        []int32                 0+        -     -        Brokers of the replicas; the first is the
                                                                       preferred leader.
  configs             []CreatableTopicConfig  0+        -     -        Settings that differ from the broker's defaults.
    name              string                  0+        -     -        Name of the setting.
    value             string                  0+        0+    -        Value of the setting; null if it has none or it
                                                                       is secret.
timeout_ms            int32                   0+        -     60000    Time in ms that the broker may take.
validate_only         bool                    1+        -     false    Whether to check the request without creating
                                                                       anything.

CreateTopicsResponse: API key 19, versions 0-7, flexible 5+

field                      type                    versions  null  tag  default  skip  meaning
throttle_time_ms           int32                   2+        -     -    -        yes   Time in ms that the broker delays
                                                                                       the client because of a quota.
topics                     []CreatableTopicResult  0+        -     -    -        -     One entry per topic.
  name                     string                  0+        -     -    -        -     Name of the topic.
  topic_id                 uuid                    7+        -     -    -        yes   Id of the topic; zeros if
                                                                                       unknown.
  error_code               int16                   0+        -     -    -        -     Error of this entry as a
                                                                                       `kbatch.ErrorCode`; 0 if none.
  error_message            string                  1+        0+    -    -        yes   Text of the error; null if there
                                                                                       is none.
  topic_config_error_code  int16                   5+        -     0    -        yes   Error that explains a null in
                                                                                       `configs`, as a
                                                                                       `kbatch.ErrorCode`; 0 if none.
  num_partitions           int32                   5+        -     -    -1       yes   Number of partitions; -1 after an
                                                                                       error.
  replication_factor       int16                   5+        -     -    -1       yes   Number of replicas; -1 after an
                                                                                       error.
  configs                  []CreatableTopicConfigs  5+       5+    -    -        yes   Settings of the new topic; null
                                                                                       if the client may not see them.
    name                   string                  5+        -     -    -        -     Name of the setting.
    value                  string                  5+        5+    -    -        -     Value of the setting; null if it
                                                                                       has none or it is secret.
    read_only              bool                    5+        -     -    -        -     Whether the setting cannot be
                                                                                       changed.
    config_source          int8                    5+        -     -    -1       yes   Source of the value, a code of
                                                                                       Kafka's ConfigSource.
    is_sensitive           bool                    5+        -     -    -        -     Whether the value is secret and
                                                                                       therefore null.

DeleteTopicsRequest: API key 20, versions 0-6, flexible 4+

field        type                versions  null  default  skip  meaning
topics       []DeleteTopicState  6+        -     -        -     Topics to delete, by name or by id.
  name       string              6+        6+    null     -     Name of the topic; null if it is given by id.
  topic_id   uuid                6+        -     -        -     Id of the topic; zeros if unknown.
topic_names  []string            0-5       -     -        yes   Names of the topics to delete.
timeout_ms   int32               0+        -     -        -     Time in ms that the broker may take.

DeleteTopicsResponse: API key 20, versions 0-6, flexible 4+

field             type                    versions  null  default  skip  meaning
throttle_time_ms  int32                   1+        -     -        yes   Time in ms that the broker delays the client
                                                                         because of a quota.
responses         []DeletableTopicResult  0+        -     -        -     One entry per topic.
  name            string                  0+        6+    -        -     Name of the topic; null if it is unknown.
  topic_id        uuid                    6+        -     -        yes   Id of the topic; zeros if unknown.
  error_code      int16                   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0
                                                                         if none.
  error_message   string                  5+        5+    null     yes   Text of the error; null if there is none.

DeleteRecordsRequest: API key 21, versions 0-2, flexible 2+

field                type                  versions  meaning
topics               []DeleteRecordsTopic  0+        One entry per topic.
  name               string                0+        Name of the topic.
  partitions         []DeleteRecordsPartition  0+    One entry per partition.
    partition_index  int32                 0+        Number of the partition.
    offset           int64                 0+        Offset before which records are deleted; -1 for the high watermark.
timeout_ms           int32                 0+        Time in ms that the broker may take.

DeleteRecordsResponse: API key 21, versions 0-2, flexible 2+

field                type    versions  meaning
throttle_time_ms     int32   0+        Time in ms that the broker delays the client because of a quota.
topics               []DeleteRecordsTopicResult  0+  One entry per topic.
  name               string  0+        Name of the topic.
  partitions         []DeleteRecordsPartitionResult  0+  One entry per partition.
    partition_index  int32   0+        Number of the partition.
    low_watermark    int64   0+        First offset of the log after the deletion; -1 after an error.
    error_code       int16   0+        Error of this entry as a `kbatch.ErrorCode`; 0 if none.

DescribeConfigsRequest: API key 32, versions 0-4, flexible 4+

field                  type      versions  null  default  meaning
resources              []DescribeConfigsResource  0+  -  -  Resources to describe.
  resource_type        int8      0+        -     -        Kind of the resource, a code of Kafka's ConfigResource: 2
                                                          topic, 4 broker.
  resource_name        string    0+        -     -        Name of the resource.
  configuration_keys   []string  0+        0+    -        Names of the settings to return; null for all.
include_synonyms       bool      1+        -     false    Whether to return the values that each setting overrides.
include_documentation  bool      3+        -     false    Whether to return help texts.

DescribeConfigsResponse: API key 32, versions 0-4, flexible 4+

field              type    versions  null  default  skip  meaning
throttle_time_ms   int32   0+        -     -        -     Time in ms that the broker delays the client because of a
                                                          quota.
results            []DescribeConfigsResult  0+  -  -  -   One entry per resource.
  error_code       int16   0+        -     -        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message    string  0+        0+    -        -     Text of the error; null if there is none.
  resource_type    int8    0+        -     -        -     Kind of the resource, a code of Kafka's ConfigResource: 2
                                                          topic, 4 broker.
  resource_name    string  0+        -     -        -     Name of the resource.
  configs          []DescribeConfigsResourceResult  0+  -  -  -  Settings of the resource.
    name           string  0+        -     -        -     Name of the setting.
    value          string  0+        0+    -        -     Value of the setting; null if it has none or it is secret.
    read_only      bool    0+        -     -        -     Whether the setting cannot be changed.
    is_default     bool    0         -     -        -     Whether the value is the default.
    config_source  int8    1+        -     -1       yes   Source of the value, a code of Kafka's ConfigSource.
    is_sensitive   bool    0+        -     -        -     Whether the value is secret and therefore null.
    synonyms       []DescribeConfigsSynonym  1+  -  -  yes  Values that this one overrides, in order of precedence.
      name         string  1+        -     -        -     Name of the setting.
      value        string  1+        0+    -        -     Value of the setting; null if it has none or it is secret.
      source       int8    1+        -     -        -     Source of the value, a code of Kafka's ConfigSource.
    config_type    int8    3+        -     0        yes   Type of the value, a code of Kafka's ConfigType; 0 if unknown.
    documentation  string  3+        0+    -        yes   Help text of the setting; null if not requested.
"""

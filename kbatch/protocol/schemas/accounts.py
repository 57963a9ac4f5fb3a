"""SCRAM credentials, quotas and metrics of clients. `kbatch.protocol.schema` explains the tables."""

ACCOUNTS_TABLES = """
DescribeUserScramCredentialsRequest: API key 50, versions 0, flexible 0+

field   type        versions  null  meaning
users   []UserName  0+        0+    Users to describe; null or empty for all.
  name  string      0+        -     Name of the user.

DescribeUserScramCredentialsResponse: API key 50, versions 0, flexible 0+

field               type              versions  null  meaning
throttle_time_ms    int32             0+        -     Time in ms that the broker delays the client because of a quota.
error_code          int16             0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message       string            0+        0+    Text of the error; null if there is none.
results             []DescribeUserScramCredentialsResult  0+  -  One entry per user.
  user              string            0+        -     Name of the user.
  error_code        int16             0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message     string            0+        0+    Text of the error; null if there is none.
  credential_infos  []CredentialInfo  0+        -     Credentials of the user, one per mechanism.
    mechanism       int8              0+        -     SCRAM mechanism: 0 unknown, 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
    iterations      int32             0+        -     Number of iterations of the hash function.

AlterUserScramCredentialsRequest: API key 51, versions 0, flexible 0+

field              type    versions  meaning
deletions          []ScramCredentialDeletion  0+  Credentials to delete.
  name             string  0+        Name of the user.
  mechanism        int8    0+        SCRAM mechanism: 0 unknown, 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
upsertions         []ScramCredentialUpsertion  0+  Credentials to create or replace.
  name             string  0+        Name of the user.
  mechanism        int8    0+        SCRAM mechanism: 0 unknown, 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
  iterations       int32   0+        Number of iterations of the hash function.
  salt             bytes   0+        Random bytes, chosen by the client.
  salted_password  bytes   0+        Password after salting and hashing.

AlterUserScramCredentialsResponse: API key 51, versions 0, flexible 0+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
results           []AlterUserScramCredentialsResult  0+  -  One entry per user.
  user            string  0+        -     Name of the user.
  error_code      int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    Text of the error; null if there is none.

DescribeClientQuotasRequest: API key 48, versions 0-1, flexible 1+

field          type             versions  null  meaning
components     []ComponentData  0+        -     Conditions that an entity has to meet.
  entity_type  string           0+        -     Kind of the part that the condition is about, such as user, client-id or
                                                ip.
  match_type   int8             0+        -     How the name is compared: 0 exactly, 1 the default, 2 any name.
  match        string           0+        0+    Name to find; null unless `match_type` is 0.
strict         bool             0+        -     Whether to leave out entities with more parts than there are conditions.

DescribeClientQuotasResponse: API key 48, versions 0-1, flexible 1+

field             type          versions  null  meaning
throttle_time_ms  int32         0+        -     Time in ms that the broker delays the client because of a quota.
error_code        int16         0+        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string        0+        0+    Text of the error; null if there is none.
entries           []EntryData   0+        0+    One entry per entity; null after an error.
  entity          []EntityData  0+        -     Parts that identify the entity, such as user and client id.
    entity_type   string        0+        -     Kind of this part, such as user, client-id or ip.
    entity_name   string        0+        0+    Name of this part; null for the default.
  values          []ValueData   0+        -     Quotas of the entity.
    key           string        0+        -     Name of the quota, such as producer_byte_rate.
    value         float64       0+        -     Value of the quota.

AlterClientQuotasRequest: API key 49, versions 0-1, flexible 1+

field            type          versions  null  meaning
entries          []EntryData   0+        -     One entry per entity.
  entity         []EntityData  0+        -     Parts that identify the entity, such as user and client id.
    entity_type  string        0+        -     Kind of this part, such as user, client-id or ip.
    entity_name  string        0+        0+    Name of this part; null for the default.
  ops            []OpData      0+        -     Quotas to change.
    key          string        0+        -     Name of the quota, such as producer_byte_rate.
    value        float64       0+        -     Value of the quota; ignored if it is removed.
    remove       bool          0+        -     Whether to remove the quota rather than to set it.
validate_only    bool          0+        -     Whether to check the request without changing anything.

AlterClientQuotasResponse: API key 49, versions 0-1, flexible 1+

field             type          versions  null  meaning
throttle_time_ms  int32         0+        -     Time in ms that the broker delays the client because of a quota.
entries           []EntryData   0+        -     One entry per entity.
  error_code      int16         0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string        0+        0+    Text of the error; null if there is none.
  entity          []EntityData  0+        -     Parts that identify the entity, such as user and client id.
    entity_type   string        0+        -     Kind of this part, such as user, client-id or ip.
    entity_name   string        0+        0+    Name of this part; null for the default.

GetTelemetrySubscriptionsRequest: API key 71, versions 0, flexible 0+

field               type  versions  meaning
client_instance_id  uuid  0+        Id of the client instance; zeros to request one.

GetTelemetrySubscriptionsResponse: API key 71, versions 0, flexible 0+

field                       type      versions  meaning
throttle_time_ms            int32     0+        Time in ms that the broker delays the client because of a quota.
error_code                  int16     0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
client_instance_id          uuid      0+        New id of the client instance; zeros if it has one.
subscription_id             int32     0+        Id of the set of metrics that the client sends.
accepted_compression_types  []int8    0+        Codecs that the broker accepts for metrics, as in the attributes of a
                                                record batch.
push_interval_ms            int32     0+        Time in ms between two reports of metrics.
telemetry_max_bytes         int32     0+        Largest number of bytes of metrics that the broker accepts.
delta_temporality           bool      0+        Whether counters are sent as differences rather than as totals.
requested_metrics           []string  0+        Prefixes of the metrics to send; one empty prefix for all.

PushTelemetryRequest: API key 72, versions 0, flexible 0+

field               type   versions  meaning
client_instance_id  uuid   0+        Id of the client instance.
subscription_id     int32  0+        Id of the set of metrics that the client sends.
terminating         bool   0+        Whether the client is about to end.
compression_type    int8   0+        Codec of the metrics, as in the attributes of a record batch.
metrics             bytes  0+        Metrics as OpenTelemetry MetricsData in Protobuf.

PushTelemetryResponse: API key 72, versions 0, flexible 0+

field             type   versions  meaning
throttle_time_ms  int32  0+        Time in ms that the broker delays the client because of a quota.
error_code        int16  0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
"""

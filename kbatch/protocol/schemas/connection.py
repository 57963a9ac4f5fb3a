"""The connection: headers, versions, authentication. `kbatch.protocol.schema` explains the tables."""

CONNECTION_TABLES = """
RequestHeader: versions 0-2, flexible 2+

field                type        versions  null  skip  meaning
request_api_key      int16       0+        -     -     Number of the API of the request.
request_api_version  int16       0+        -     -     Version of the request.
correlation_id       int32       0+        -     -     Number chosen by the client; the response repeats it.
client_id            old_string  1+        1+    yes   Client id, chosen by the client.

ResponseHeader: versions 0-1, flexible 1+

field           type   versions  meaning
correlation_id  int32  0+        Number chosen by the client; the response repeats it.

ApiVersionsRequest: API key 18, versions 0-5, flexible 3+

field                    type    versions  null  default  skip  meaning
client_software_name     string  3+        -     -        yes   Name of the client library.
client_software_version  string  3+        -     -        yes   Version of the client library.
cluster_id               string  5+        5+    null     yes   Cluster that the client means to reach, checked by the
                                                                broker; null to skip the check.
node_id                  int32   5+        -     -1       yes   Broker that the client means to reach, checked by the
                                                                broker; -1 to skip the check.

ApiVersionsResponse: API key 18, versions 0-5, flexible 3+

field                     type                   versions  tag  default  skip  meaning
error_code                int16                  0+        -    -        -     Error of the whole request as a
                                                                               `kbatch.ErrorCode`; 0 if none.
api_keys                  []ApiVersion           0+        -    -        -     Versions that the broker accepts, one
                                                                               entry per API.
  api_key                 int16                  0+        -    -        -     Number of the API.
  min_version             int16                  0+        -    -        -     Lowest version accepted.
  max_version             int16                  0+        -    -        -     Highest version accepted.
throttle_time_ms          int32                  1+        -    -        yes   Time in ms that the broker delays the
                                                                               client because of a quota.
supported_features        []SupportedFeatureKey  3+        0    -        yes   Cluster features that the broker
                                                                               supports.
  name                    string                 3+        -    -        -     Name of the feature.
  min_version             int16                  3+        -    -        -     Lowest level of the feature that the
                                                                               broker supports.
  max_version             int16                  3+        -    -        -     Highest level of the feature that the
                                                                               broker supports.
finalized_features_epoch  int64                  3+        1    -1       yes   Epoch of the finalized features; -1 if
                                                                               unknown.
finalized_features        []FinalizedFeatureKey  3+        2    -        yes   Cluster features in force; valid only if
                                                                               the epoch is 0 or more.
  name                    string                 3+        -    -        -     Name of the feature.
  max_version_level       int16                  3+        -    -        -     Highest level that the cluster has agreed
                                                                               on.
  min_version_level       int16                  3+        -    -        -     Lowest level that the cluster has agreed
                                                                               on.
zk_migration_ready        bool                   3+        3    false    yes   Whether a migration from ZooKeeper may
                                                                               begin.

SaslHandshakeRequest: API key 17, versions 0-1, flexible none

field      type    versions  meaning
mechanism  string  0+        Name of the SASL mechanism.

SaslHandshakeResponse: API key 17, versions 0-1, flexible none

field       type      versions  meaning
error_code  int16     0+        Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
mechanisms  []string  0+        SASL mechanisms that the broker supports.

SaslAuthenticateRequest: API key 36, versions 0-2, flexible 2+

field       type   versions  meaning
auth_bytes  bytes  0+        Token of the SASL mechanism.

SaslAuthenticateResponse: API key 36, versions 0-2, flexible 2+

field                type    versions  null  default  skip  meaning
error_code           int16   0+        -     -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                            none.
error_message        string  0+        0+    -        -     Text of the error; null if there is none.
auth_bytes           bytes   0+        -     -        -     Token of the SASL mechanism.
session_lifetime_ms  int64   1+        -     0        yes   Time in ms until the client has to authenticate again; 0 if
                                                            never.
"""

"""Settings of resources and features of the cluster. `kbatch.protocol.schema` explains the tables."""

CONFIGS_TABLES = """
AlterConfigsRequest: API key 33, versions 0-2, flexible 2+

field            type                    versions  null  meaning
resources        []AlterConfigsResource  0+        -     One entry per resource.
  resource_type  int8                    0+        -     Kind of the resource, a code of Kafka's ConfigResource: 2
                                                         topic, 4 broker.
  resource_name  string                  0+        -     Name of the resource.
  configs        []AlterableConfig       0+        -     Settings to change.
    name         string                  0+        -     Name of the setting.
    value        string                  0+        0+    Value of the setting; null if it has none.
validate_only    bool                    0+        -     Whether to check the request without changing anything.

AlterConfigsResponse: API key 33, versions 0-2, flexible 2+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
responses         []AlterConfigsResourceResponse  0+  -  One entry per resource.
  error_code      int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    Text of the error; null if there is none.
  resource_type   int8    0+        -     Kind of the resource, a code of Kafka's ConfigResource: 2 topic, 4 broker.
  resource_name   string  0+        -     Name of the resource.

IncrementalAlterConfigsRequest: API key 44, versions 0-1, flexible 1+

field                 type                    versions  null  meaning
resources             []AlterConfigsResource  0+        -     One entry per resource.
  resource_type       int8                    0+        -     Kind of the resource, a code of Kafka's ConfigResource: 2
                                                              topic, 4 broker.
  resource_name       string                  0+        -     Name of the resource.
  configs             []AlterableConfig       0+        -     Settings to change.
    name              string                  0+        -     Name of the setting.
    config_operation  int8                    0+        -     What to do with the setting: 0 set, 1 delete, 2 append, 3
                                                              subtract.
    value             string                  0+        0+    Value of the setting; null if it has none.
validate_only         bool                    0+        -     Whether to check the request without changing anything.

IncrementalAlterConfigsResponse: API key 44, versions 0-1, flexible 1+

field             type    versions  null  meaning
throttle_time_ms  int32   0+        -     Time in ms that the broker delays the client because of a quota.
responses         []AlterConfigsResourceResponse  0+  -  One entry per resource.
  error_code      int16   0+        -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    Text of the error; null if there is none.
  resource_type   int8    0+        -     Kind of the resource, a code of Kafka's ConfigResource: 2 topic, 4 broker.
  resource_name   string  0+        -     Name of the resource.

ListConfigResourcesRequest: API key 74, versions 0-1, flexible 0+

field           type    versions  meaning
resource_types  []int8  1+        Kinds of resources to list; empty for all.

ListConfigResourcesResponse: API key 74, versions 0-1, flexible 0+

field             type              versions  default  skip  meaning
throttle_time_ms  int32             0+        -        -     Time in ms that the broker delays the client because of a
                                                             quota.
error_code        int16             0+        -        -     Error of the whole request as a `kbatch.ErrorCode`; 0 if
                                                             none.
config_resources  []ConfigResource  0+        -        -     Resources that have settings.
  resource_name   string            0+        -        -     Name of the resource.
  resource_type   int8              1+        16       yes   Kind of the resource, a code of Kafka's ConfigResource: 2
                                                             topic, 4 broker.

UpdateFeaturesRequest: API key 57, versions 0-2, flexible 0+

field                type                versions  default  meaning
timeout_ms           int32               0+        60000    Time in ms that the broker may take.
feature_updates      []FeatureUpdateKey  0+        -        Features to change.
  feature            string              0+        -        Name of the feature.
  max_version_level  int16               0+        -        New level of the feature; less than 1 to remove it.
  allow_downgrade    bool                0         -        Whether the level may become lower.
  upgrade_type       int8                1+        1        Kind of the change: 1 upgrade, 2 downgrade without loss, 3
                                                            downgrade with loss.
validate_only        bool                1+        false    Whether to check the request without changing anything.

UpdateFeaturesResponse: API key 57, versions 0-2, flexible 0+

field             type    versions  null  skip  meaning
throttle_time_ms  int32   0+        -     -     Time in ms that the broker delays the client because of a quota.
error_code        int16   0+        -     -     Error of the whole request as a `kbatch.ErrorCode`; 0 if none.
error_message     string  0+        0+    -     Text of the error; null if there is none.
results           []UpdatableFeatureResult  0-1  -  yes  One entry per feature.
  feature         string  0+        -     -     Name of the feature.
  error_code      int16   0+        -     -     Error of this entry as a `kbatch.ErrorCode`; 0 if none.
  error_message   string  0+        0+    -     Text of the error; null if there is none.
"""

"""Records of `__cluster_metadata`: brokers, topics, partitions. `kbatch.protocol.schema` explains the tables."""

STORED_CLUSTER_TABLES = """
RegisterBrokerRecord: record type 0, versions 0-4, flexible 0+

field                    type             versions  null  tag  default  meaning
broker_id                int32            0+        -     -    -        Broker id.
is_migrating_zk_broker   bool             2+        -     -    -        Whether the broker still uses ZooKeeper and is
                                                                        being migrated.
incarnation_id           uuid             0+        -     -    -        Id of the process of the broker.
broker_epoch             int64            0+        -     -    -        Epoch that the controller gave to the broker.
end_points               []BrokerEndpoint  0+       -     -    -        Listeners of the broker.
  name                   string           0+        -     -    -        Name of the listener.
  host                   string           0+        -     -    -        Host name.
  port                   uint16           0+        -     -    -        Port of the listener.
  security_protocol      int16            0+        -     -    -        0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3
                                                                        SASL_SSL.
features                 []BrokerFeature  0+        -     -    -        Features that the broker supports.
  name                   string           0+        -     -    -        Name of the feature.
  min_supported_version  int16            0+        -     -    -        Lowest level that is supported.
  max_supported_version  int16            0+        -     -    -        Highest level that is supported.
rack                     string           0+        0+    -    -        Rack of the broker; null without one.
fenced                   bool             0+        -     -    true     Whether the broker may not lead partitions.
in_controlled_shutdown   bool             1+        -     -    -        Whether the broker is shutting down.
log_dirs                 []uuid           3+        -     0    -        Ids of the log directories that are online.
cordoned_log_dirs        []uuid           4+        4+    1    null     Ids of the log directories that get no new
                                                                        replicas; null if they are unknown.

UnregisterBrokerRecord: record type 1, versions 0, flexible 0+

field         type   versions  meaning
broker_id     int32  0+        Broker id.
broker_epoch  int64  0+        Epoch of the broker.

TopicRecord: record type 2, versions 0, flexible 0+

field     type    versions  meaning
name      string  0+        Name of the topic.
topic_id  uuid    0+        Id of the topic.

PartitionRecord: record type 3, versions 0-2, flexible 0+

field                     type     versions  null  tag  default  meaning
partition_id              int32    0+        -     -    -1       Number of the partition.
topic_id                  uuid     0+        -     -    -        Id of the topic.
replicas                  []int32  0+        -     -    -        Brokers that have a replica, preferred first.
isr                       []int32  0+        -     -    -        Brokers whose replica is in sync.
removing_replicas         []int32  0+        -     -    -        Brokers whose replica a reassignment removes.
adding_replicas           []int32  0+        -     -    -        Brokers that get a replica by a reassignment.
leader                    int32    0+        -     -    -1       Broker that is the leader; -1 without one.
leader_recovery_state     int8     0+        -     0    -        1 after an unclean election, until the leader has
                                                                 recovered.
leader_epoch              int32    0+        -     -    -1       Leader epoch.
partition_epoch           int32    0+        -     -    -1       Number of changes of the partition.
directories               []uuid   1+        -     -    -        Ids of the log directories of the replicas.
eligible_leader_replicas  []int32  2+        2+    1    null     Brokers outside of the ISR that have all committed
                                                                 records.
last_known_elr            []int32  2+        2+    2    null     Eligible leaders before they failed.

ConfigRecord: record type 4, versions 0, flexible 0+

field          type    versions  null  meaning
resource_type  int8    0+        -     2 a topic, 4 a broker, 16 client metrics, 32 a group.
resource_name  string  0+        -     Name of the topic or group, or the broker id; empty for all brokers.
name           string  0+        -     Name of the setting.
value          string  0+        0+    Value of the setting; null if it is removed.

PartitionChangeRecord: record type 5, versions 0-2, flexible 0+

field                     type     versions  null  tag  default  meaning
partition_id              int32    0+        -     -    -1       Number of the partition.
topic_id                  uuid     0+        -     -    -        Id of the topic.
isr                       []int32  0+        0+    0    null     Brokers whose replica is in sync; null without a
                                                                 change.
leader                    int32    0+        -     1    -2       Broker that is the leader; -1 without one, -2 without a
                                                                 change.
replicas                  []int32  0+        0+    2    null     Brokers that have a replica; null without a change.
removing_replicas         []int32  0+        0+    3    null     Brokers whose replica a reassignment removes; null
                                                                 without a change.
adding_replicas           []int32  0+        0+    4    null     Brokers that get a replica by a reassignment; null
                                                                 without a change.
leader_recovery_state     int8     0+        -     5    -1       1 after an unclean election, 0 after the recovery, -1
                                                                 without a change.
directories               []uuid   1+        1+    8    null     Ids of the log directories of the replicas; null
                                                                 without a change.
eligible_leader_replicas  []int32  2+        2+    6    null     Brokers outside of the ISR that have all committed
                                                                 records; null without a change.
last_known_elr            []int32  2+        2+    7    null     Eligible leaders before they failed; null without a
                                                                 change.

FenceBrokerRecord: record type 7, versions 0, flexible 0+

field  type   versions  meaning
id     int32  0+        Broker that may not lead partitions any more.
epoch  int64  0+        Epoch of the broker.

UnfenceBrokerRecord: record type 8, versions 0, flexible 0+

field  type   versions  meaning
id     int32  0+        Broker that may lead partitions again.
epoch  int64  0+        Epoch of the broker.

RemoveTopicRecord: record type 9, versions 0, flexible 0+

field     type  versions  meaning
topic_id  uuid  0+        Id of the topic that is deleted.

FeatureLevelRecord: record type 12, versions 0, flexible 0+

field          type    versions  meaning
name           string  0+        Name of the feature, such as metadata.version.
feature_level  int16   0+        Level of the feature in the cluster; 0 if it is off.

BrokerRegistrationChangeRecord: record type 17, versions 0-3, flexible 0+

field                   type    versions  null  tag  default  meaning
broker_id               int32   0+        -     -    -        Broker id.
broker_epoch            int64   0+        -     -    -        Epoch of the broker.
fenced                  int8    0+        -     0    -        1 fenced, -1 unfenced, 0 without a change.
in_controlled_shutdown  int8    1+        -     1    -        1 if the broker is shutting down, 0 without a change.
log_dirs                []uuid  2+        -     2    -        Ids of the log directories that are online.
cordoned_log_dirs       []uuid  3+        3+    3    null     Ids of the log directories that get no new replicas; null
                                                              without a change.
"""

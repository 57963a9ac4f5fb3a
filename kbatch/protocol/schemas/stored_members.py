"""What members of classic consumer groups exchange. `kbatch.protocol.schema` explains the tables.

Each follows its version. Brokers store both in the values of `GroupMetadataValue`, and do not read most of them.
"""

STORED_MEMBERS_TABLES = """
ConsumerProtocolSubscription: versions 0-3, flexible none

field             type              versions  null  default  skip  meaning
topics            []string          0+        -     -        -     Topics that the member subscribes to.
user_data         bytes             0+        0+    null     -     Data of the assignor; null if there is none.
owned_partitions  []TopicPartition  1+        -     -        yes   Partitions that the member has now.
  topic           string            1+        -     -        -     Name of the topic.
  partitions      []int32           1+        -     -        -     Numbers of the partitions.
generation_id     int32             2+        -     -1       yes   Generation in which the member got its partitions.
rack_id           string            3+        3+    null     yes   Rack of the member; null if it has none.

ConsumerProtocolAssignment: versions 0-3, flexible none

field                type              versions  null  default  meaning
assigned_partitions  []TopicPartition  0+        -     -        Partitions that the member gets.
  topic              string            0+        -     -        Name of the topic.
  partitions         []int32           0+        -     -        Numbers of the partitions.
user_data            bytes             0+        0+    null     Data of the assignor; null if there is none.
"""

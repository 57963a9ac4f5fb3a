import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.generated.*;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.*;

/** Prints "topic key value" in hexadecimal, as Kafka's own serializers write records of internal topics. */
public class Stored {
    static final Uuid TOPIC = new Uuid(1, 2);

    static String hex(byte[] data) {
        return data == null ? "-" : HexFormat.of().formatHex(data);
    }

    static void keyed(String topic, CoordinatorRecordSerde serde, CoordinatorRecord each) {
        System.out.println(topic + " " + hex(serde.serializeKey(each)) + " " + hex(serde.serializeValue(each)));
    }

    static void remote(RemoteLogMetadata each) {
        System.out.println("__remote_log_metadata - " + hex(new RemoteLogMetadataSerde().serialize(each)));
    }

    static ApiMessageAndVersion value(ApiMessage message) {
        return new ApiMessageAndVersion(message, (short) 0);
    }

    public static void main(String[] arguments) {
        String topic = "__share_group_state";
        CoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        ShareSnapshotKey key = new ShareSnapshotKey().setGroupId("g").setTopicId(TOPIC).setPartition(3);
        List<ShareSnapshotValue.StateBatch> batches = List.of(new ShareSnapshotValue.StateBatch()
            .setFirstOffset(5).setLastOffset(7).setDeliveryState((byte) 2).setDeliveryCount((short) 1));
        keyed(topic, serde, CoordinatorRecord.record(key, value(new ShareSnapshotValue().setSnapshotEpoch(4)
            .setStateEpoch(1).setLeaderEpoch(2).setStartOffset(5).setDeliveryCompleteCount(3).setCreateTimestamp(1000)
            .setWriteTimestamp(-1).setStateBatches(batches))));
        keyed(topic, serde, CoordinatorRecord.record(
            new ShareUpdateKey().setGroupId("g").setTopicId(TOPIC).setPartition(3),
            value(new ShareUpdateValue().setSnapshotEpoch(4).setLeaderEpoch(2).setStartOffset(-1))));
        keyed(topic, serde, CoordinatorRecord.tombstone(key));

        topic = "__consumer_offsets";
        serde = new GroupCoordinatorRecordSerde();
        keyed(topic, serde, CoordinatorRecord.record(new ConsumerGroupMetadataKey().setGroupId("c"),
            value(new ConsumerGroupMetadataValue().setEpoch(9).setMetadataHash(77))));
        keyed(topic, serde, CoordinatorRecord.record(
            new ConsumerGroupMemberMetadataKey().setGroupId("c").setMemberId("m"),
            value(new ConsumerGroupMemberMetadataValue().setClientId("id").setClientHost("/1.2.3.4")
                .setSubscribedTopicNames(List.of("orders")).setClassicMemberMetadata(
                    new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(45000)
                        .setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                            .setName("range").setMetadata(new byte[] {1, 2})))))));
        keyed(topic, serde, CoordinatorRecord.record(
            new ConsumerGroupRegularExpressionKey().setGroupId("c").setRegularExpression("o.*"),
            value(new ConsumerGroupRegularExpressionValue().setTopics(List.of("orders")).setVersion(8).setTimestamp(5))));
        keyed(topic, serde, CoordinatorRecord.tombstone(new ShareGroupMetadataKey().setGroupId("s")));
        keyed(topic, serde, CoordinatorRecord.record(new StreamsGroupTopologyKey().setGroupId("t"),
            value(new StreamsGroupTopologyValue().setEpoch(1).setSubtopologies(List.of(
                new StreamsGroupTopologyValue.Subtopology().setSubtopologyId("0").setSourceTopics(List.of("in")))))));

        TopicIdPartition partition = new TopicIdPartition(TOPIC, new TopicPartition("orders", 3));
        RemoteLogSegmentId id = new RemoteLogSegmentId(partition, new Uuid(3, 4));
        RemoteLogSegmentMetadata.CustomMetadata custom =
            new RemoteLogSegmentMetadata.CustomMetadata(new byte[] {9});
        remote(new RemoteLogSegmentMetadata(id, 10, 20, 1234, 1, 5678, 4096, Optional.of(custom),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED, Map.of(0, 10L), true));
        remote(new RemoteLogSegmentMetadataUpdate(id, 5679, Optional.empty(),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1));
        remote(new RemotePartitionDeleteMetadata(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 5680, 1));
        remote(new RemoteLogSegmentMetadataSnapshot(new Uuid(3, 4), 10, 20, 1234, 1, 5678, 4096, Optional.of(custom),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, new java.util.TreeMap<>(Map.of(0, 10L)), true));
    }
}

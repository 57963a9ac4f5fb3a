import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.metadata.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.transaction.generated.*;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.properties.*;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.storage.internals.checkpoint.*;
import org.apache.kafka.storage.internals.log.*;

/** Writes small logs and state files with Kafka's own classes, and what its JSON converters say of the records. */
public class WriteInternalTopics {
    static final long TIME = 1700000000000L;
    static final List<SimpleRecord> records = new ArrayList<>();
    static final StringBuilder lines = new StringBuilder();

    static void record(byte[] key, byte[] value, ObjectNode line) {
        line.put("offset", records.size());
        line.put("timestamp", TIME + records.size());
        lines.append(line).append('\n');
        records.add(new SimpleRecord(TIME + records.size(), key, value));
    }

    static ObjectNode line(int type, JsonNode key, int version, JsonNode value) {
        ObjectNode line = JsonNodeFactory.instance.objectNode();
        line.put("type", type);
        line.set("key", key);
        line.put("version", version);
        line.set("value", value);
        return line;
    }

    static void close(Path out, String name) throws IOException {
        Path directory = Files.createDirectories(out.resolve(name));
        MemoryRecords batch = MemoryRecords.withRecords(Compression.NONE, records.toArray(new SimpleRecord[0]));
        byte[] bytes = new byte[batch.sizeInBytes()];
        batch.buffer().get(bytes);
        Files.write(directory.resolve("00000000000000000000.log"), bytes);
        Files.writeString(directory.resolve("expected.jsonl"), lines);
        records.clear();
        lines.setLength(0);
    }

    static void offset(String group, String topic, int partition, int version, OffsetCommitValue value) {
        OffsetCommitKey key = new OffsetCommitKey().setGroup(group).setTopic(topic).setPartition(partition);
        record(MessageUtil.toCoordinatorTypePrefixedBytes(key),
            value == null ? null : MessageUtil.toVersionPrefixedBytes((short) version, value),
            line(1, OffsetCommitKeyJsonConverter.write(key, (short) 0), version,
                value == null ? NullNode.instance : OffsetCommitValueJsonConverter.write(value, (short) version)));
    }

    static void group(String group, int version, GroupMetadataValue value) {
        GroupMetadataKey key = new GroupMetadataKey().setGroup(group);
        record(MessageUtil.toCoordinatorTypePrefixedBytes(key),
            value == null ? null : MessageUtil.toVersionPrefixedBytes((short) version, value),
            line(2, GroupMetadataKeyJsonConverter.write(key, (short) 0), version,
                value == null ? NullNode.instance : GroupMetadataValueJsonConverter.write(value, (short) version)));
    }

    static void transaction(String id, int version, TransactionLogValue value) {
        TransactionLogKey key = new TransactionLogKey().setTransactionalId(id);
        record(MessageUtil.toCoordinatorTypePrefixedBytes(key),
            value == null ? null : MessageUtil.toVersionPrefixedBytes((short) version, value),
            line(0, TransactionLogKeyJsonConverter.write(key, (short) 0), version,
                value == null ? NullNode.instance : TransactionLogValueJsonConverter.write(value, (short) version)));
    }

    static void metadata(ApiMessage message, int version) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ApiMessageAndVersion both = new ApiMessageAndVersion(message, (short) version);
        MetadataRecordSerde serde = new MetadataRecordSerde();
        ByteBuffer buffer = ByteBuffer.allocate(serde.recordSize(both, cache));
        serde.write(both, cache, new ByteBufferAccessor(buffer));
        ByteBufferAccessor plain = MessageUtil.toByteBufferAccessor(message, (short) version);
        ObjectNode line = JsonNodeFactory.instance.objectNode();
        line.put("apiKey", message.apiKey());
        line.put("name", message.getClass().getSimpleName());
        line.put("version", version);
        line.put("message", HexFormat.of().formatHex(plain.buffer().array(), 0, plain.buffer().limit()));
        record(null, buffer.array(), line);
    }

    static void control(int type, Message message, int version, JsonNode json) {
        control(type, MessageUtil.toByteBufferAccessor(message, (short) version).buffer(), json);
    }

    static void control(int type, ByteBuffer buffer, JsonNode json) {
        ObjectNode line = JsonNodeFactory.instance.objectNode();
        line.put("type", type);
        line.put("bytes", HexFormat.of().formatHex(buffer.array(), 0, buffer.limit()));
        line.set("value", json);
        lines.append(line).append('\n');
    }

    /** The text files that a broker keeps beside its logs. */
    static void state(Path out) throws IOException {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        Map<TopicPartition, Long> offsets = new LinkedHashMap<>();
        offsets.put(new TopicPartition("orders", 0), 0L);
        offsets.put(new TopicPartition("a-b.c_d", 2147483647), 9223372036854775807L);
        new OffsetCheckpointFile(out.resolve("log-start-offset-checkpoint").toFile(), failures).write(offsets);
        new LeaderEpochCheckpointFile(out.resolve("leader-epoch-checkpoint").toFile(), failures)
            .write(List.of(new EpochEntry(0, 0), new EpochEntry(7, 1200)));
        PartitionMetadataFile metadata = new PartitionMetadataFile(out.resolve("partition.metadata").toFile(), failures);
        metadata.record(new Uuid(0x0102030405060708L, 0x1112131415161718L));
        metadata.maybeFlush();
        Properties properties = new MetaProperties.Builder().setVersion(MetaPropertiesVersion.V1)
            .setClusterId("q1Sh-9_ISia_zwGINzRvyQ").setNodeId(3).setDirectoryId(new Uuid(3, 4)).build().toProperties();
        properties.setProperty("odd: key=", " \\ text\twith a \u20ac");
        PropertiesUtils.writePropertiesFile(properties, out.resolve("meta.properties").toString(), false);
    }

    public static void main(String[] args) throws IOException {
        Path out = Paths.get(args[0]);
        for (int version = 0; version <= 4; version++) {
            OffsetCommitValue value = new OffsetCommitValue().setOffset(1L << (20 + version))
                .setMetadata(version == 2 ? "" : "märk-" + version).setCommitTimestamp(TIME + 100 + version);
            if (version == 1) value.setExpireTimestamp(TIME + 86400000L);
            if (version >= 3) value.setLeaderEpoch(version);
            offset("group-" + version, "orders", version, version, value);
        }
        offset("group-4", "payments", 0, 4, new OffsetCommitValue().setOffset(7).setMetadata("")
            .setCommitTimestamp(TIME).setTopicId(new Uuid(0x0102030405060708L, 0x1112131415161718L)));
        offset("group-1", "orders", 1, 0, null);
        for (int version = 0; version <= 4; version++) {
            GroupMetadataValue value = new GroupMetadataValue().setProtocolType("consumer").setGeneration(10 + version)
                .setProtocol(version == 1 ? null : "range").setLeader(version == 1 ? null : "member-a");
            if (version >= 2) value.setCurrentStateTimestamp(TIME + version);
            for (int member = 0; member < version; member++) {
                GroupMetadataValue.MemberMetadata one = new GroupMetadataValue.MemberMetadata()
                    .setMemberId("member-" + (char) ('a' + member)).setClientId("client").setClientHost("/127.0.0.1")
                    .setSessionTimeout(45000).setSubscription(new byte[] {0, 1, (byte) member})
                    .setAssignment(member == 0 ? new byte[0] : new byte[] {(byte) 0xff});
                if (version >= 1) one.setRebalanceTimeout(300000);
                if (version >= 3 && member == 1) one.setGroupInstanceId("static-1");
                value.members().add(one);
            }
            group("group-" + version, version, value);
        }
        group("group-0", 0, null);
        ConsumerGroupMetadataKey newer = new ConsumerGroupMetadataKey().setGroupId("new-protocol");
        record(MessageUtil.toCoordinatorTypePrefixedBytes(newer),
            MessageUtil.toVersionPrefixedBytes((short) 0, new ConsumerGroupMetadataValue().setEpoch(3)),
            line(3, ConsumerGroupMetadataKeyJsonConverter.write(newer, (short) 0), 0, NullNode.instance));
        close(out, "__consumer_offsets-0");

        for (int status = 0; status <= 7; status++) {
            for (int version = 0; version <= 1; version++) {
                TransactionLogValue value = new TransactionLogValue().setProducerId(4000 + status)
                    .setProducerEpoch((short) status).setTransactionTimeoutMs(60000).setTransactionStatus((byte) status)
                    .setTransactionLastUpdateTimestampMs(TIME + status).setTransactionStartTimestampMs(status == 0 ? -1 : TIME)
                    .setTransactionPartitions(status == 0 ? null : List.of(
                        new TransactionLogValue.PartitionsSchema().setTopic("orders").setPartitionIds(List.of(0, 2, status)),
                        new TransactionLogValue.PartitionsSchema().setTopic("__consumer_offsets").setPartitionIds(List.of())));
                if (version == 1 && status >= 2)
                    value.setPreviousProducerId(3999).setNextProducerId(5000).setClientTransactionVersion((short) 2)
                        .setNextProducerEpoch((short) 1);
                transaction("transfer-" + status, version, value);
            }
        }
        transaction("transfer-6", 0, null);
        close(out, "__transaction_state-0");

        metadata(new FeatureLevelRecord().setName("metadata.version").setFeatureLevel((short) 29), 0);
        metadata(new TopicRecord().setName("orders").setTopicId(new Uuid(1, 2)), 0);
        metadata(new PartitionRecord().setPartitionId(3).setTopicId(new Uuid(1, 2)).setReplicas(List.of(1, 2))
            .setIsr(List.of(1)).setLeader(1), 1);
        metadata(new NoOpRecord(), 0);
        metadata(new BrokerRegistrationChangeRecord().setBrokerId(1).setBrokerEpoch(300), 0);
        close(out, "__cluster_metadata-0");

        control(1, new EndTransactionMarker(ControlRecordType.COMMIT, 9).serializeValue(),
            EndTxnMarkerJsonConverter.write(new EndTxnMarker().setCoordinatorEpoch(9), (short) 0));
        for (int version = 0; version <= 1; version++) {
            List<LeaderChangeMessage.Voter> voters = new ArrayList<>();
            for (int id = 1; id <= 3; id++) {
                LeaderChangeMessage.Voter voter = new LeaderChangeMessage.Voter().setVoterId(id);
                if (version == 1) voter.setVoterDirectoryId(new Uuid(id, 7));
                voters.add(voter);
            }
            LeaderChangeMessage change = new LeaderChangeMessage().setVersion((short) version).setLeaderId(2)
                .setVoters(voters).setGrantingVoters(voters.subList(0, 2));
            control(2, change, version, LeaderChangeMessageJsonConverter.write(change, (short) version));
        }
        SnapshotHeaderRecord header = new SnapshotHeaderRecord().setVersion((short) 0).setLastContainedLogTimestamp(TIME);
        control(3, header, 0, SnapshotHeaderRecordJsonConverter.write(header, (short) 0));
        SnapshotFooterRecord footer = new SnapshotFooterRecord().setVersion((short) 0);
        control(4, footer, 0, SnapshotFooterRecordJsonConverter.write(footer, (short) 0));
        KRaftVersionRecord kraft = new KRaftVersionRecord().setVersion((short) 0).setKRaftVersion((short) 1);
        control(5, kraft, 0, KRaftVersionRecordJsonConverter.write(kraft, (short) 0));
        VotersRecord.EndpointCollection endpoints = new VotersRecord.EndpointCollection();
        endpoints.add(new VotersRecord.Endpoint().setName("CONTROLLER").setHost("controller-1").setPort(65535));
        endpoints.add(new VotersRecord.Endpoint().setName("SECOND").setHost("").setPort(9093));
        VotersRecord voters = new VotersRecord().setVersion((short) 0).setVoters(List.of(
            new VotersRecord.Voter().setVoterId(1).setVoterDirectoryId(new Uuid(8, 9)).setEndpoints(endpoints)
                .setKRaftVersionFeature(new VotersRecord.KRaftVersionFeature().setMinSupportedVersion((short) 0)
                    .setMaxSupportedVersion((short) 1))));
        control(6, voters, 0, VotersRecordJsonConverter.write(voters, (short) 0));
        Files.writeString(out.resolve("control.jsonl"), lines);
        state(Files.createDirectories(out.resolve("state")));
    }
}

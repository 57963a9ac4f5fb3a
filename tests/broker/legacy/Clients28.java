import java.nio.ByteBuffer;
import java.util.List;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;

/** Magic 0 and 1 by the last builders that wrote all old formats, with gaps between offsets as compaction leaves them. */
final class Clients28 {
    public static void main(String[] args) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            // zstd came after magic 1.
            if (codec == CompressionType.ZSTD) continue;
            build(RecordBatch.MAGIC_VALUE_V0, codec, TimestampType.NO_TIMESTAMP_TYPE);
            build(RecordBatch.MAGIC_VALUE_V1, codec, TimestampType.CREATE_TIME);
            build(RecordBatch.MAGIC_VALUE_V1, codec, TimestampType.LOG_APPEND_TIME);
        }
    }

    private static void build(byte magic, CompressionType codec, TimestampType type) throws Exception {
        Written written = new Written();
        boolean appended = type == TimestampType.LOG_APPEND_TIME;
        for (long first : new long[] {100, 200}) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(
                ByteBuffer.allocate(1 << 18), magic, codec, type, first, appended ? Written.APPENDED : -1);
            List<Written.Sample> samples = Written.samples("clients-2.8.2", codec != CompressionType.NONE);
            for (int i = 0; i < samples.size(); i++) {
                Written.Sample one = samples.get(i);
                long offset = first + 3L * i;
                long timestamp = magic == RecordBatch.MAGIC_VALUE_V0 ? -1 : one.timestamp();
                builder.appendWithOffset(offset, timestamp, one.key(), one.value());
                written.row(offset, appended ? Written.APPENDED : timestamp, type.id, one);
            }
            written.set(builder.build().buffer());
        }
        written.save("clients-2.8.2-magic" + magic + "-" + codec.name + (appended ? "-append-time" : ""));
    }
}

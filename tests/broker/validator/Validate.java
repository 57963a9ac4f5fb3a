import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Runs LogValidator for each line of standard input: the records in hex, the topic's codec (or "producer") and magic,
 * whether it is compacted, and the origin.
 */
public class Validate {
    static final LogValidator.MetricsRecorder METRICS = new LogValidator.MetricsRecorder() {
        public void recordInvalidMagic() { }
        public void recordInvalidOffset() { }
        public void recordInvalidSequence() { }
        public void recordInvalidChecksums() { }
        public void recordNoKeyCompactedTopic() { }
    };

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            String[] fields = line.split(" ");
            System.out.println(validate(HexFormat.of().parseHex(fields[0]), fields[1], Byte.parseByte(fields[2]),
                    Boolean.parseBoolean(fields[3]), AppendOrigin.valueOf(fields[4])));
        }
    }

    static String validate(byte[] data, String codec, byte magic, boolean compacted, AppendOrigin origin) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(data));
        RecordBatch first = records.batches().iterator().next();
        CompressionType source = first.compressionType();
        CompressionType target = codec.equals("producer") ? source : CompressionType.forName(codec);
        try {
            LogValidator.ValidationResult result = new LogValidator(records, new TopicPartition("t", 0), Time.SYSTEM,
                    source, Compression.of(target).build(), compacted, magic, TimestampType.CREATE_TIME, Long.MAX_VALUE,
                    Long.MAX_VALUE, 0, origin)
                    .validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(100), METRICS, BufferSupplier.NO_CACHING);
            int count = 0;
            for (Object each : result.validatedRecords().records()) {
                count++;
            }
            return "ok " + count;
        } catch (RecordValidationException error) {
            return error.invalidException().getClass().getSimpleName() + " " + error.recordErrors().stream()
                    .map(each -> Integer.toString(each.batchIndex)).collect(Collectors.joining(","));
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }
}

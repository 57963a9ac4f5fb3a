import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.internals.AppInfoParser;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.CloseableIterator;

/**
 * Kafka's own reader: every record's offset, timestamp, key and value length summed, CRCs checked.
 *
 * <p>As the consumer does it (CompletedFetch): the batches of a MemoryRecords over the fetched bytes, ensureValid() for
 * the CRC, and streamingIterator() with a BufferSupplier that keeps what decompression needs from batch to batch.
 *
 * <p>A line on standard input is one decode of the file, answered by one line of JSON.
 */
public class Decode {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer data = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])));
        ThreadMXBean thread = ManagementFactory.getThreadMXBean();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        while (lines.readLine() != null) {
            long cpu = thread.getCurrentThreadCpuTime();
            long start = System.nanoTime();
            String sums = decode(data.duplicate());
            long wall = System.nanoTime() - start;
            System.out.printf("{\"name\": \"kafka-clients\", \"version\": \"%s\", \"seconds\": %.9f, \"wall\": %.9f, %s}%n",
                AppInfoParser.getVersion(), (thread.getCurrentThreadCpuTime() - cpu) / 1e9, wall / 1e9, sums);
        }
    }

    private static final BufferSupplier BUFFERS = BufferSupplier.create();

    /** Sums wrap modulo 2^64; a null key or value counts as empty. */
    private static String decode(ByteBuffer data) {
        long records = 0, offsets = 0, timestamps = 0, keyBytes = 0, valueBytes = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(data).batches()) {
            batch.ensureValid();
            try (CloseableIterator<Record> iterator = batch.streamingIterator(BUFFERS)) {
                while (iterator.hasNext()) {
                    Record record = iterator.next();
                    records++;
                    offsets += record.offset();
                    timestamps += record.timestamp();
                    keyBytes += Math.max(record.keySize(), 0);
                    valueBytes += Math.max(record.valueSize(), 0);
                }
            }
        }
        return String.format("\"records\": %d, \"offsets\": %d, \"timestamps\": %d, \"keyBytes\": %d, \"valueBytes\": %d",
            records, offsets, timestamps, keyBytes, valueBytes);
    }
}

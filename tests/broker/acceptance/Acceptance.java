import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/**
 * What Kafka's own classes make of files: of each argument a line with its path, then one for each record, as JSON.
 *
 * Every batch is checked (ensureValid) and read in three ways, which must agree: iterated, streamed, and from the file.
 */
final class Acceptance {
    public static void main(String[] paths) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String path : paths) {
            out.append('"').append(path).append("\"\n");
            try {
                for (String row : read(Path.of(path))) out.append(row).append('\n');
            } catch (Exception error) {
                out.append("{\"error\": \"").append(error.toString().replaceAll("[\"\\\\\n]", " ")).append("\"}\n");
            }
        }
        System.out.write(out.toString().getBytes("UTF-8"));
        System.out.flush();
    }

    private static List<String> read(Path path) throws Exception {
        byte[] bytes = Files.readAllBytes(path);
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
        if (records.validBytes() != bytes.length) throw new IllegalStateException("valid bytes: " + records.validBytes());
        List<String> iterated = new ArrayList<>();
        List<String> streamed = new ArrayList<>();
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            if (!batch.isValid()) throw new IllegalStateException("not valid: " + batch);
            for (Record record : batch) iterated.add(row(batch, record));
            try (CloseableIterator<Record> stream = batch.streamingIterator(BufferSupplier.create())) {
                while (stream.hasNext()) streamed.add(row(batch, stream.next()));
            }
        }
        List<String> filed = new ArrayList<>();
        try (FileRecords file = FileRecords.open(path.toFile(), false)) {
            for (RecordBatch batch : file.batches()) {
                batch.ensureValid();
                for (Record record : batch) filed.add(row(batch, record));
            }
        }
        if (!iterated.equals(streamed) || !iterated.equals(filed)) throw new IllegalStateException("readers differ");
        return iterated;
    }

    private static String row(RecordBatch batch, Record record) {
        record.ensureValid();
        if (!record.hasMagic(batch.magic())) throw new IllegalStateException("inner magic");
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers())
            headers.add("[" + hex(header.key().getBytes(java.nio.charset.StandardCharsets.UTF_8)) + ", " + hex(header.value()) + "]");
        String control = "null";
        if (batch.isControlBatch()) {
            ControlRecordType type = ControlRecordType.parse(record.key());
            control = "\"" + type + " " + EndTransactionMarker.deserialize(record).coordinatorEpoch() + "\"";
        }
        String producer = "[%d, %d, %d, %b, %d]".formatted(
            batch.producerId(), batch.producerEpoch(), record.sequence(), batch.isTransactional(), batch.partitionLeaderEpoch());
        return "{\"offset\": %d, \"timestamp\": %d, \"type\": %d, \"key\": %s, \"value\": %s, \"headers\": %s, \"control\": %s, \"producer\": %s}"
            .formatted(record.offset(), record.timestamp(), batch.timestampType().id, hex(record.key()), hex(record.value()),
                headers, control, producer);
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) return "null";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return hex(bytes);
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : '"' + HexFormat.of().formatHex(bytes) + '"';
    }
}

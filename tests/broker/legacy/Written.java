import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** What the makers write: the same records for all, the bytes that Kafka's classes made of them, and a list of both. */
final class Written {
    static final long EPOCH = 1_450_000_000_000L;
    static final long APPENDED = 1_460_000_000_000L;
    static final int NO_TIMESTAMP_TYPE = -1;
    static final int CREATE_TIME = 0;
    static final int LOG_APPEND_TIME = 1;

    /** The value is `unit`, repeated; null stays null. */
    record Sample(byte[] key, byte[] unit, int times, long timestamp) {
        byte[] value() {
            if (unit == null || times == 1) return unit;
            ByteBuffer all = ByteBuffer.allocate(unit.length * times);
            for (int i = 0; i < times; i++) all.put(unit);
            return all.array();
        }
    }

    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final List<String> rows = new ArrayList<>();

    /** Everything that a key or a value can lack, and some records more. */
    static List<Sample> samples(String tag, boolean compressed) {
        byte[] key = "key".getBytes();
        byte[] value = (tag + " value").getBytes();
        byte[] all = new byte[64];
        for (int i = 0; i < 64; i++) all[i] = (byte) (i * 4 + 3);
        List<Sample> samples = new ArrayList<>();
        byte[][] keys = {key, null, new byte[0], key, key, null, new byte[0], {0, -1}};
        byte[][] values = {value, value, value, null, new byte[0], null, new byte[0], all};
        for (int i = 0; i < keys.length; i++) samples.add(new Sample(keys[i], values[i], 1, EPOCH + i));
        // Time may go back.
        samples.add(new Sample(key, value, 1, EPOCH - 1000));
        // More than a block of snappy's (32 KiB) and lz4's (64 KiB) streams.
        if (compressed) samples.add(new Sample(key, value, 4000, EPOCH + 10));
        for (int i = 0; i < 4; i++) samples.add(new Sample(("k" + i).getBytes(), (tag + i).getBytes(), 1, EPOCH + 100 + i));
        return samples;
    }

    void set(ByteBuffer set) {
        byte[] copy = new byte[set.remaining()];
        set.duplicate().get(copy);
        bytes.writeBytes(copy);
    }

    void row(long offset, long timestamp, int type, Sample sample) {
        rows.add(
            "{\"offset\": %d, \"timestamp\": %d, \"timestampType\": %d, \"key\": %s, \"value\": %s%s}".formatted(
                offset, timestamp, type, hex(sample.key()), hex(sample.unit()),
                sample.times() == 1 ? "" : ", \"times\": " + sample.times()));
    }

    void save(String name) throws IOException {
        Files.write(Path.of(name + ".bin"), bytes.toByteArray());
        Files.writeString(Path.of(name + ".jsonl"), String.join("\n", rows) + "\n");
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : '"' + java.util.HexFormat.of().formatHex(bytes) + '"';
    }
}

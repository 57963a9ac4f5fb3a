import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

import com.sun.management.OperatingSystemMXBean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.internals.AppInfoParser;

/**
 * Kafka's own consumer: records counted as poll() returns them, CRCs checked.
 *
 * <p>Each topic is read by a consumer of its own: assign() without a group, arrays of bytes as keys and values.
 *
 * <p>A line on standard input, "TOPIC PARTITIONS RECORDS sums" or "TOPIC PARTITIONS RECORDS count", is one read of a topic,
 * from the creation of the consumer to the last record. It is answered by one line of JSON. With sums, offsets,
 * timestamps, and lengths of keys and values are summed too.
 */
public class Consume {
    private static final int PARTITION_BYTES = 4 << 20, RESPONSE_BYTES = 32 << 20;
    private static final long DEADLINE_SECONDS = 120;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            read(arguments[0], words[0], Integer.parseInt(words[1]), Long.parseLong(words[2]), words[3].equals("sums"));
        }
    }

    private static void read(String server, String topic, int partitions, long total, boolean sums) {
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long cpu = process.getProcessCpuTime();
        long start = System.nanoTime();
        long records = 0, offsets = 0, timestamps = 0, keyBytes = 0, valueBytes = 0;
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", server);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.partition.fetch.bytes", PARTITION_BYTES);
        settings.put("fetch.max.bytes", RESPONSE_BYTES);
        settings.put("max.poll.records", 100_000);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> assigned =
                IntStream.range(0, partitions).mapToObj(one -> new TopicPartition(topic, one)).toList();
            consumer.assign(assigned);
            while (records < total) {
                ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(100));
                records += found.count();
                if (sums) {
                    for (ConsumerRecord<byte[], byte[]> record : found) {
                        offsets += record.offset();
                        timestamps += record.timestamp();
                        keyBytes += Math.max(record.serializedKeySize(), 0);
                        valueBytes += Math.max(record.serializedValueSize(), 0);
                    }
                }
                if (System.nanoTime() - start > DEADLINE_SECONDS * 1_000_000_000L)
                    throw new IllegalStateException("not all records arrived within " + DEADLINE_SECONDS + " s");
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.printf("{\"version\": \"%s\", \"seconds\": %.9f, \"cpu\": %.9f, \"sums\": [%d, %d, %d, %d, %d]}%n",
                AppInfoParser.getVersion(), seconds, (process.getProcessCpuTime() - cpu) / 1e9,
                records, offsets, timestamps, keyBytes, valueBytes);
        }
    }
}

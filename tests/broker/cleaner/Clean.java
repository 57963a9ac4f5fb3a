import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Clean logs in place, once, with Kafka's own cleaner. The file that the argument names has a log a line:
 * directory, time, delete.retention.ms, first dirty offset, producer.id.expiration.ms, segment.bytes.
 */
public class Clean {
    record Fixed(long now) implements Time {
        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return now * 1_000_000;
        }

        public void sleep(long ms) {
        }

        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {
        }
    }

    static class NoScheduler implements Scheduler {
        public void startup() {
        }

        public void shutdown() {
        }

        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            return null;
        }

        public void resizeThreadPool(int size) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        BrokerTopicStats stats = new BrokerTopicStats();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split("\t");
            Time time = new Fixed(Long.parseLong(parts[1]));
            Map<String, String> config = new HashMap<>();
            config.put("cleanup.policy", "compact");
            config.put("delete.retention.ms", parts[2]);
            config.put("internal.segment.bytes", parts[5]);
            config.put("max.message.bytes", "10000000");
            UnifiedLog log = UnifiedLog.create(new File(parts[0]), new LogConfig(config), 0, 0, new NoScheduler(), stats,
                time, 300000, new ProducerStateManagerConfig(Integer.parseInt(parts[4]), true), 600000,
                new LogDirFailureChannel(10), false, Optional.empty());
            log.updateHighWatermark(log.logEndOffset());
            log.removeExpiredProducers(time.milliseconds());
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 24, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", time), time, partition -> { });
            long end = Math.min(log.lastStableOffset(), log.activeSegment().baseOffset());
            cleaner.doClean(new LogToClean(log, Long.parseLong(parts[3]), end, false), time.milliseconds());
        }
    }
}

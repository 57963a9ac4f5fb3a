import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.utils.Time;

/** What kafka-clients 2.8.2 makes of the batches in NAME.bin for a fetch of magic 1 and 0: NAME-magic1.bin, NAME-magic0.bin. */
public class DownConvert28 {
    public static void main(String[] arguments) throws Exception {
        List<Path> inputs;
        try (Stream<Path> files = Files.list(Path.of("."))) {
            inputs = files.filter(f -> f.toString().endsWith(".bin") && !f.toString().contains("-magic"))
                .collect(Collectors.toList());
        }
        for (Path input : inputs) {
            for (byte magic = 0; magic < 2; magic++) {
                MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(input)));
                MemoryRecords converted = records.downConvert(magic, 0L, Time.SYSTEM).records();
                Path output = Path.of(input.toString().replace(".bin", "-magic" + magic + ".bin"));
                try (FileChannel channel = FileChannel.open(output, StandardOpenOption.CREATE,
                        StandardOpenOption.TRUNCATE_EXISTING, StandardOpenOption.WRITE)) {
                    converted.writeFullyTo(channel);
                }
            }
        }
    }
}

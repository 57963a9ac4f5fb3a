import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import kafka.message.ByteBufferMessageSet;
import kafka.message.CompressionCodec;
import kafka.message.GZIPCompressionCodec$;
import kafka.message.LZ4CompressionCodec$;
import kafka.message.Message;
import kafka.message.NoCompressionCodec$;
import kafka.message.SnappyCompressionCodec$;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import scala.collection.JavaConversions;

/** Magic 0 by Kafka 0.8.2: message sets as its broker has them in a log, and as its producer sends them. */
final class Core08 {
    public static void main(String[] args) throws Exception {
        broker("none", NoCompressionCodec$.MODULE$);
        broker("gzip", GZIPCompressionCodec$.MODULE$);
        broker("snappy", SnappyCompressionCodec$.MODULE$);
        broker("lz4", LZ4CompressionCodec$.MODULE$);
        for (CompressionType codec : CompressionType.values()) producer(codec);
    }

    /** Two sets with a gap between their offsets; inner offsets are absolute. */
    private static void broker(String codec, CompressionCodec with) throws Exception {
        Written written = new Written();
        for (long first : new long[] {100, 200}) {
            List<Message> messages = new ArrayList<>();
            long offset = first;
            for (Written.Sample one : Written.samples("core-0.8.2.2", !codec.equals("none"))) {
                messages.add(new Message(one.value(), one.key()));
                written.row(offset++, -1, Written.NO_TIMESTAMP_TYPE, one);
            }
            written.set(
                new ByteBufferMessageSet(with, new AtomicLong(first), JavaConversions.asScalaBuffer(messages)).buffer());
        }
        written.save("core-0.8.2.2-magic0-" + codec);
    }

    private static void producer(CompressionType codec) throws Exception {
        Written written = new Written();
        MemoryRecords records = MemoryRecords.emptyRecords(ByteBuffer.allocate(1 << 18), codec);
        long offset = 0;
        for (Written.Sample one : Written.samples("clients-0.8.2.2", codec != CompressionType.NONE)) {
            records.append(offset, one.key(), one.value());
            written.row(offset++, -1, Written.NO_TIMESTAMP_TYPE, one);
        }
        records.close();
        ByteBuffer set = records.buffer();
        set.flip();
        written.set(set);
        written.save("clients-0.8.2.2-magic0-" + codec.name);
    }
}

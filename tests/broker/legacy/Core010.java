import java.util.ArrayList;
import java.util.List;
import kafka.common.LongRef;
import kafka.message.ByteBufferMessageSet;
import kafka.message.CompressionCodec;
import kafka.message.GZIPCompressionCodec$;
import kafka.message.LZ4CompressionCodec$;
import kafka.message.Message;
import kafka.message.NoCompressionCodec$;
import kafka.message.SnappyCompressionCodec$;
import org.apache.kafka.common.record.TimestampType;
import scala.collection.JavaConversions;

/** Magic 1 by the broker of Kafka 0.10.0: appended from sets of magic 1 with either timestamp type, and of magic 0. */
final class Core010 {
    private static final byte V0 = 0;
    private static final byte V1 = 1;

    public static void main(String[] args) throws Exception {
        for (TimestampType type : new TimestampType[] {TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME}) {
            append("none", NoCompressionCodec$.MODULE$, V1, type);
            append("gzip", GZIPCompressionCodec$.MODULE$, V1, type);
            append("snappy", SnappyCompressionCodec$.MODULE$, V1, type);
            append("lz4", LZ4CompressionCodec$.MODULE$, V1, type);
        }
        append("none", NoCompressionCodec$.MODULE$, V0, TimestampType.CREATE_TIME);
        append("gzip", GZIPCompressionCodec$.MODULE$, V0, TimestampType.CREATE_TIME);
        append("lz4", LZ4CompressionCodec$.MODULE$, V0, TimestampType.LOG_APPEND_TIME);
    }

    private static void append(String codec, CompressionCodec with, byte magic, TimestampType type) throws Exception {
        Written written = new Written();
        boolean appended = type == TimestampType.LOG_APPEND_TIME;
        for (long first : new long[] {100, 200}) {
            List<Message> messages = new ArrayList<>();
            long offset = first;
            for (Written.Sample one : Written.samples("core-0.10.0.1", !codec.equals("none"))) {
                long created = magic == V0 ? -1 : one.timestamp();
                messages.add(new Message(one.value(), one.key(), created, magic));
                long timestamp = appended ? Written.APPENDED : created;
                written.row(offset++, timestamp, appended ? Written.LOG_APPEND_TIME : Written.CREATE_TIME, one);
            }
            ByteBufferMessageSet sent = new ByteBufferMessageSet(with, JavaConversions.asScalaBuffer(messages));
            written.set(
                sent.validateMessagesAndAssignOffsets(
                    new LongRef(first), Written.APPENDED, with, with, false, V1, type, Long.MAX_VALUE)._1().buffer());
        }
        String from = magic == V0 ? "-from-magic0" : "";
        written.save("core-0.10.0.1-magic1-" + codec + (appended ? "-append-time" : "") + from);
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.errors.RetriableException;

/** Reads lines "message version hex" with Kafka's generated classes; prints the bytes that they write, and their JSON. */
public class Codec {
    static final String[] PACKAGES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.coordinator.share.generated.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.%s",
    };

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String each : PACKAGES) {
            try {
                return Class.forName(String.format(each, name));
            } catch (ClassNotFoundException error) {
                // In another package.
            }
        }
        throw new ClassNotFoundException(name);
    }

    static String one(String name, short version, byte[] data) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(data);
        Class<?> type = find(name);
        Message message = (Message) type.getDeclaredConstructor().newInstance();
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining())
            return "trailing bytes: " + buffer.remaining();
        ObjectSerializationCache cache = new ObjectSerializationCache();
        byte[] bytes = new byte[message.size(cache, version)];
        message.write(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), cache, version);
        JsonNode json = (JsonNode) Class.forName(type.getName() + "JsonConverter")
            .getMethod("write", type, short.class).invoke(null, message, version);
        return HexFormat.of().formatHex(bytes) + " " + json;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            for (Errors each : Errors.values())
                System.out.println("error " + each.code() + " " + each.name() + " " + (each.exception() instanceof RetriableException));
            for (ApiKeys each : ApiKeys.values())
                System.out.println("api " + each.id + " " + each.name() + " " + each.name);
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            try {
                System.out.println(one(words[0], Short.parseShort(words[1]), HexFormat.of().parseHex(words[2])));
            } catch (InvocationTargetException error) {
                System.out.println("error: " + error.getCause());
            } catch (Exception error) {
                System.out.println("error: " + error);
            }
        }
    }
}

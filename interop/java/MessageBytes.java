import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Encodes values with Kafka's own message classes.
 *
 * Without arguments: reads lines of class, version and JSON value, separated by tabs, and prints the bytes in
 * hexadecimal, or "error" and a reason. With the argument "errors": prints the error codes, their names and whether
 * they are retriable.
 */
public final class MessageBytes {
    private MessageBytes() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        if (arguments.length == 1 && arguments[0].equals("errors")) {
            for (Errors error : Errors.values()) {
                boolean retriable = error.exception() instanceof RetriableException;
                out.println(error.code() + "\t" + error.name() + "\t" + retriable);
            }
        } else {
            ObjectMapper mapper = new ObjectMapper();
            BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] parts = line.split("\t", 3);
                out.println(answer(parts[0], Short.parseShort(parts[1]), mapper.readTree(parts[2])));
            }
        }
        out.flush();
    }

    private static String answer(String className, short version, JsonNode value) throws Exception {
        try {
            Message message = (Message) Class.forName(className + "JsonConverter")
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, value, version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer bytes = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(bytes), cache, version);
            if (bytes.hasRemaining()) {
                return "error it is smaller than it said";
            }
            return HexFormat.of().formatHex(bytes.array());
        } catch (InvocationTargetException failed) {
            return "error " + failed.getCause();
        }
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;

/**
 * Builds the responses that a broker sends if an exception ends the handling of a request.
 *
 * Reads one line per request: API key, version and bytes, separated by blanks. Prints the bytes of the response with
 * UNKNOWN_SERVER_ERROR, or "none" if this API sends no response. Prints "fails" if Kafka cannot parse the request or
 * build the response, so that a client gets none.
 */
public final class ErrorResponses {
    private ErrorResponses() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
        out.flush();
    }

    private static String answer(String[] asked) {
        ApiKeys api = ApiKeys.forId(Short.parseShort(asked[0]));
        short version = Short.parseShort(asked[1]);
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(asked[2]));
        ByteBuffer made;
        try {
            AbstractRequest request = AbstractRequest.parseRequest(api, version, new ByteBufferAccessor(bytes)).request;
            AbstractResponse response = request.getErrorResponse(0, new IllegalStateException("what failed"));
            if (response == null) {
                return "none";
            }
            made = MessageUtil.toByteBufferAccessor(response.data(), version).buffer();
        } catch (RuntimeException failure) {
            return "fails";
        }
        byte[] found = new byte[made.remaining()];
        made.get(found);
        return HexFormat.of().formatHex(found);
    }
}

import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Applies ssl.principal.mapping.rules to distinguished names (KIP-371).
 *
 * Reads one JSON array per line: rules and distinguished names. Prints a JSON array with one array for each name: the
 * principal's name, or null and the error message. If the rules are invalid, prints the error message as a string.
 */
public final class PrincipalMappings {
    private PrincipalMappings() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = JsonMapper.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            try {
                SslPrincipalMapper rules = SslPrincipalMapper.fromRules(asked.get(0).asText());
                List<List<String>> answer = new ArrayList<>();
                for (JsonNode name : asked.get(1)) {
                    List<String> one = new ArrayList<>();
                    try {
                        one.add(rules.getName(name.asText()));
                    } catch (Exception failed) {
                        one.add(null);
                        one.add(failed.getMessage());
                    }
                    answer.add(one);
                }
                out.println(mapper.writeValueAsString(answer));
            } catch (IllegalArgumentException invalid) {
                out.println(mapper.writeValueAsString(invalid.getMessage()));
            }
        }
        out.flush();
    }
}

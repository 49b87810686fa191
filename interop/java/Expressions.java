import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Evaluates regular expressions with the library that Kafka uses for topic subscriptions.
 *
 * Reads one JSON array per line: an expression and names. Prints the names that match. If the expression is invalid,
 * prints the library's error message as a string.
 */
public final class Expressions {
    private Expressions() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            try {
                Pattern pattern = Pattern.compile(asked.get(0).asText());
                ArrayNode matching = mapper.createArrayNode();
                for (JsonNode name : asked.get(1)) {
                    if (pattern.matcher(name.asText()).matches()) {
                        matching.add(name);
                    }
                }
                out.println(mapper.writeValueAsString(matching));
            } catch (PatternSyntaxException wrong) {
                out.println(mapper.writeValueAsString(wrong.getDescription()));
            }
        }
        out.flush();
    }
}

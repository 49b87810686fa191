import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;

/**
 * Computes the topic and group hashes of a group coordinator (KIP-848).
 *
 * Reads one JSON array of topics per line: names, ids, and the racks of the replicas by partition. Prints the hashes
 * of the topics and of the group, separated by tabs.
 */
public final class TopicHashes {
    private TopicHashes() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Long> hashes = new LinkedHashMap<>();
            StringBuilder answer = new StringBuilder();
            for (JsonNode topic : mapper.readTree(line)) {
                String name = topic.get(0).asText();
                long hash = Utils.computeTopicHash(name, image(topic));
                hashes.put(name, hash);
                answer.append(hash).append('\t');
            }
            out.println(answer.append(Utils.computeGroupHash(hashes)));
        }
        out.flush();
    }

    private static CoordinatorMetadataImage image(JsonNode topic) {
        CoordinatorMetadataImage.TopicMetadata metadata = answering(
            CoordinatorMetadataImage.TopicMetadata.class,
            (method, argument) -> switch (method) {
                case "name" -> topic.get(0).asText();
                case "id" -> Uuid.fromString(topic.get(1).asText());
                case "partitionCount" -> topic.get(2).size();
                case "partitionRacks" -> racks(topic.get(2).get((Integer) argument));
                default -> throw new IllegalArgumentException(method);
            }
        );
        return answering(CoordinatorMetadataImage.class, (method, argument) -> Optional.of(metadata));
    }

    private static List<String> racks(JsonNode partition) {
        List<String> racks = new ArrayList<>();
        partition.forEach(rack -> racks.add(rack.asText()));
        return racks;
    }

    private interface Answer {
        Object to(String method, Object argument);
    }

    private static <T> T answering(Class<T> type, Answer answer) {
        return type.cast(Proxy.newProxyInstance(
            type.getClassLoader(),
            new Class<?>[] {type},
            (proxy, method, arguments) -> answer.to(method.getName(), arguments == null ? null : arguments[0])
        ));
    }
}

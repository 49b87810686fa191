import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignorException;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.TopicIds;
import org.apache.kafka.timeline.SnapshotRegistry;
import org.apache.kafka.timeline.TimelineHashMap;

/**
 * Runs Kafka's own assignors of consumer groups.
 *
 * Reads one JSON object per line. It contains the assignor, whether the group is homogeneous, the topics (name, id,
 * partitions) in any order, and the members in the order of their joins. A member has an id, an instance id, topic
 * names (the topics may not exist), and its previous assignment as pairs of topic id and partitions.
 *
 * Prints one line per input: the assignment, or the assignor's error message as a string. An assignment consists of
 * pairs of member id and a list of pairs of topic id and partitions, in the order of Kafka's maps and sets.
 */
public final class Assignments {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Assignments() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = MAPPER.readTree(line);
            try {
                out.println(MAPPER.writeValueAsString(answer(asked)));
            } catch (PartitionAssignorException failed) {
                out.println(MAPPER.writeValueAsString(failed.getMessage()));
            }
        }
        out.flush();
    }

    private static JsonNode answer(JsonNode asked) {
        Topics topics = new Topics(asked.get("topics"));
        // Kafka also keeps a group's members in a map of this type, and copies them from the map into the spec.
        TimelineHashMap<String, JsonNode> joined =
            new TimelineHashMap<>(new SnapshotRegistry(new LogContext()), 0);
        for (JsonNode member : asked.get("members")) {
            joined.put(member.get(0).asText(), member);
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        joined.forEach((id, member) -> {
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            for (JsonNode entry : member.get(3)) {
                Uuid topic = Uuid.fromString(entry.get(0).asText());
                List<Integer> partitions = new ArrayList<>();
                entry.get(1).forEach(partition -> partitions.add(partition.asInt()));
                assigned.put(topic, new HashSet<>(partitions));
                partitions.forEach(one -> owners.computeIfAbsent(topic, __ -> new HashMap<>()).put(one, id));
            }
            List<String> names = new ArrayList<>();
            member.get(2).forEach(name -> names.add(name.asText()));
            members.put(id, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(),
                member.get(1).isNull() ? Optional.empty() : Optional.of(member.get(1).asText()),
                new TopicIds(new HashSet<>(names), topics),
                new Assignment(assigned)
            ));
        });
        ConsumerGroupPartitionAssignor assignor =
            asked.get("assignor").asText().equals("range") ? new RangeAssignor() : new UniformAssignor();
        SubscriptionType type =
            asked.get("homogeneous").asBoolean() ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupAssignment made =
            assignor.assign(new GroupSpecImpl(Collections.unmodifiableMap(members), type, owners), topics);
        ObjectNode answer = MAPPER.createObjectNode();
        made.members().forEach((id, member) -> {
            ArrayNode of = answer.putArray(id);
            member.partitions().forEach((topic, partitions) -> {
                ArrayNode entry = of.addArray().add(topic.toString()).addArray();
                partitions.forEach(entry::add);
            });
        });
        return answer;
    }

    private static final class Topics implements TopicIds.TopicResolver, SubscribedTopicDescriber {
        private final Map<String, Uuid> ids = new LinkedHashMap<>();
        private final Map<Uuid, String> names = new HashMap<>();
        private final Map<Uuid, Integer> counts = new HashMap<>();

        Topics(JsonNode topics) {
            for (JsonNode topic : topics) {
                Uuid id = Uuid.fromString(topic.get(1).asText());
                ids.put(topic.get(0).asText(), id);
                names.put(id, topic.get(0).asText());
                counts.put(id, topic.get(2).asInt());
            }
        }

        @Override
        public CoordinatorMetadataImage image() {
            return CoordinatorMetadataImage.EMPTY;
        }

        @Override
        public String name(Uuid id) {
            return names.get(id);
        }

        @Override
        public Uuid id(String name) {
            return ids.get(name);
        }

        @Override
        public void clear() {
        }

        @Override
        public int numPartitions(Uuid id) {
            return counts.getOrDefault(id, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid id, int partition) {
            return Set.of();
        }
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/**
 * Computes how a controller changes a partition after broker failures, AlterPartition requests and reassignments.
 *
 * Reads one JSON object per line: a partition, the eligible leaders, and the requested change. Prints the fields
 * of the PartitionChangeRecord in a fixed order, or "none" if the partition does not change.
 */
public final class PartitionChanges {
    private static final Uuid TOPIC = new Uuid(1, 1);
    private static final Uuid DIRECTORY = new Uuid(2, 2);

    private PartitionChanges() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(changed(mapper.readTree(line)));
        }
        out.flush();
    }

    private static String changed(JsonNode question) {
        int[] replicas = numbers(question, "replicas");
        Uuid[] directories = new Uuid[replicas.length];
        Arrays.fill(directories, DIRECTORY);
        PartitionRegistration before = new PartitionRegistration.Builder().
            setReplicas(replicas).
            setDirectories(directories).
            setIsr(numbers(question, "isr")).
            setElr(numbers(question, "elr")).
            setLastKnownElr(numbers(question, "last_known_elr")).
            setRemovingReplicas(numbers(question, "removing")).
            setAddingReplicas(numbers(question, "adding")).
            setLeader(question.get("leader").asInt()).
            setLeaderRecoveryState(LeaderRecoveryState.of((byte) question.get("recovery").asInt())).
            setLeaderEpoch(5).
            setPartitionEpoch(9).
            build();
        List<Integer> live = list(question.get("live"));
        PartitionChangeBuilder builder = new PartitionChangeBuilder(
            before,
            TOPIC,
            0,
            live::contains,
            MetadataVersion.fromFeatureLevel((short) question.get("level").asInt()),
            question.get("min_isr").asInt(),
            question.get("elr_enabled").asBoolean()
        ).setDefaultDirProvider(replica -> DIRECTORY);
        builder.setElection(PartitionChangeBuilder.Election.valueOf(question.get("election").asText()));
        JsonNode target = question.get("target");
        if (target.has("isr")) builder.setTargetIsr(list(target.get("isr")));
        if (target.has("replicas")) builder.setTargetReplicas(list(target.get("replicas")));
        if (target.has("removing")) builder.setTargetRemoving(list(target.get("removing")));
        if (target.has("adding")) builder.setTargetAdding(list(target.get("adding")));
        if (target.has("unclean")) builder.setUncleanShutdownReplicas(list(target.get("unclean")));
        if (target.has("recovery")) {
            builder.setTargetLeaderRecoveryState(LeaderRecoveryState.of((byte) target.get("recovery").asInt()));
        }
        Optional<ApiMessageAndVersion> built = builder.build();
        if (built.isEmpty()) return "none";
        PartitionChangeRecord record = (PartitionChangeRecord) built.get().message();
        return String.join(" ",
            "leader=" + record.leader(),
            "isr=" + text(record.isr()),
            "elr=" + text(record.eligibleLeaderReplicas()),
            "last_known_elr=" + text(record.lastKnownElr()),
            "replicas=" + text(record.replicas()),
            "removing=" + text(record.removingReplicas()),
            "adding=" + text(record.addingReplicas()),
            "recovery=" + record.leaderRecoveryState(),
            "version=" + built.get().version());
    }

    private static String text(List<Integer> numbers) {
        return numbers == null ? "null" : numbers.toString().replace(" ", "");
    }

    private static int[] numbers(JsonNode question, String name) {
        return list(question.get(name)).stream().mapToInt(Integer::intValue).toArray();
    }

    private static List<Integer> list(JsonNode numbers) {
        List<Integer> found = new ArrayList<>();
        numbers.forEach(number -> found.add(number.asInt()));
        return found;
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.ControllerMutationQuotaManager;
import org.apache.kafka.server.quota.QuotaType;

/**
 * Asks Apache Kafka's quota managers.
 *
 * Reads one JSON object per line: the kind of the quota, the windows, and steps, which set or remove a limit, or record
 * a value of a client. A name of null is absent, and an empty one is the default. Prints one line: the throttle time in
 * ms of each recorded value.
 */
public final class QuotaThrottles {
    private QuotaThrottles() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = mapper.readTree(line);
            ClientQuotaManagerConfig config =
                new ClientQuotaManagerConfig(question.get("windows").asInt(), question.get("seconds").asInt());
            Metrics metrics = new Metrics();
            ClientQuotaManager manager = question.get("kind").asText().equals("mutations")
                ? new ControllerMutationQuotaManager(config, metrics, Time.SYSTEM, "", Optional.empty())
                : new ClientQuotaManager(config, metrics, QuotaType.PRODUCE, Time.SYSTEM, "");
            List<String> answers = new ArrayList<>();
            for (JsonNode step : question.get("steps")) {
                if (step.get(0).asText().equals("set")) {
                    Optional<Quota> limit = step.get(3).isNull()
                        ? Optional.empty() : Optional.of(new Quota(step.get(3).asDouble(), true));
                    manager.updateQuota(user(step.get(1)), clientId(step.get(2)), limit);
                } else {
                    Session session = new Session(
                        new KafkaPrincipal("User", step.get(1).asText()), InetAddress.getLoopbackAddress());
                    answers.add(Integer.toString(manager.maybeRecordAndGetThrottleTimeMs(
                        session, step.get(2).asText(), step.get(3).asDouble(), step.get(4).asLong())));
                }
            }
            out.println(String.join(" ", answers));
            manager.shutdown();
            metrics.close();
        }
        out.flush();
    }

    private static Optional<ClientQuotaEntity.ConfigEntity> user(JsonNode name) {
        if (name.isNull()) {
            return Optional.empty();
        }
        return Optional.of(name.asText().isEmpty()
            ? ClientQuotaManager.DEFAULT_USER_ENTITY : new ClientQuotaManager.UserEntity(name.asText()));
    }

    private static Optional<ClientQuotaEntity.ConfigEntity> clientId(JsonNode name) {
        if (name.isNull()) {
            return Optional.empty();
        }
        return Optional.of(name.asText().isEmpty()
            ? ClientQuotaManager.DEFAULT_USER_CLIENT_ID : new ClientQuotaManager.ClientIdEntity(name.asText()));
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Apache Kafka's StandardAuthorizer.
 *
 * Reads one JSON object per line: its settings, the ACLs of a snapshot, and steps, which add an ACL, remove one, or
 * ask for a decision. Prints one line: a character for each decision, 1 for allowed and 0 for denied.
 */
public final class Authorizations {
    private Authorizations() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(decisions(mapper.readTree(line)));
        }
        out.flush();
    }

    private static String decisions(JsonNode asked) throws Exception {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        Map<String, String> settings = new HashMap<>();
        settings.put("node.id", "1");
        asked.get("settings").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        authorizer.configure(settings);
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        Map<Uuid, StandardAcl> snapshot = new HashMap<>();
        for (JsonNode acl : asked.get("snapshot")) {
            snapshot.put(new Uuid(1, acl.get(0).asLong()), acl(acl.get(1)));
        }
        authorizer.loadSnapshot(snapshot);
        authorizer.completeInitialLoad();
        StringBuilder found = new StringBuilder();
        for (JsonNode step : asked.get("steps")) {
            switch (step.get(0).asText()) {
                case "add" -> authorizer.addAcl(new Uuid(1, step.get(1).asLong()), acl(step.get(2)));
                case "remove" -> authorizer.removeAcl(new Uuid(1, step.get(1).asLong()));
                case "ask" -> found.append(isAllowed(authorizer, step) ? '1' : '0');
                default -> found.append(isAnyAllowed(authorizer, step) ? '1' : '0');
            }
        }
        authorizer.close();
        return found.toString();
    }

    private static StandardAcl acl(JsonNode given) {
        return new StandardAcl(
            ResourceType.fromCode((byte) given.get(0).asInt()),
            given.get(1).asText(),
            PatternType.fromCode((byte) given.get(2).asInt()),
            given.get(4).asText(),
            given.get(5).asText(),
            AclOperation.fromCode((byte) given.get(3).asInt()),
            AclPermissionType.fromCode((byte) given.get(6).asInt()));
    }

    private static boolean isAllowed(StandardAuthorizer authorizer, JsonNode step) throws Exception {
        ResourceType type = ResourceType.fromCode((byte) step.get(4).asInt());
        Action action = new Action(
            AclOperation.fromCode((byte) step.get(3).asInt()),
            new ResourcePattern(type, step.get(5).asText(), PatternType.LITERAL),
            1, false, false);
        return authorizer.authorize(context(step), List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static boolean isAnyAllowed(StandardAuthorizer authorizer, JsonNode step) throws Exception {
        return authorizer.authorizeByResourceType(
            context(step),
            AclOperation.fromCode((byte) step.get(3).asInt()),
            ResourceType.fromCode((byte) step.get(4).asInt())) == AuthorizationResult.ALLOWED;
    }

    private static AuthorizableRequestContext context(JsonNode step) throws Exception {
        KafkaPrincipal principal = SecurityUtils.parseKafkaPrincipal(step.get(1).asText());
        InetAddress address = InetAddress.getByName(step.get(2).asText());
        return new AuthorizableRequestContext() {
            @Override
            public String listenerName() {
                return "";
            }

            @Override
            public SecurityProtocol securityProtocol() {
                return SecurityProtocol.PLAINTEXT;
            }

            @Override
            public KafkaPrincipal principal() {
                return principal;
            }

            @Override
            public InetAddress clientAddress() {
                return address;
            }

            @Override
            public int requestType() {
                return 0;
            }

            @Override
            public int requestVersion() {
                return 0;
            }

            @Override
            public String clientId() {
                return "";
            }

            @Override
            public int correlationId() {
                return 0;
            }
        };
    }
}

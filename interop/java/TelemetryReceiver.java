import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;
import org.apache.kafka.shaded.com.google.protobuf.InvalidProtocolBufferException;
import org.apache.kafka.shaded.io.opentelemetry.proto.common.v1.KeyValue;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.Metric;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.MetricsData;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.NumberDataPoint;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ResourceMetrics;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ScopeMetrics;

/**
 * A broker plugin that writes each pushed client metric to the file in `interop.telemetry.file`.
 *
 * Each line contains the client id, and the metric's name, whether it is a counter, its value and its label names,
 * separated by tabs.
 */
public final class TelemetryReceiver implements MetricsReporter, ClientTelemetryExporterProvider {
    private Path file;

    @Override
    public void configure(Map<String, ?> configs) {
        file = Path.of((String) configs.get("interop.telemetry.file"));
    }

    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return (context, payload) -> {
            try {
                StringBuilder lines = new StringBuilder();
                String clientId = context.authorizableRequestContext().clientId();
                MetricsData data = MetricsData.parseFrom(payload.data());
                write(clientId, data, lines);
            } catch (InvalidProtocolBufferException e) {
                throw new IllegalArgumentException(e);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        };
    }

    private synchronized void write(String clientId, MetricsData data, StringBuilder lines) throws IOException {
        for (ResourceMetrics resource : data.getResourceMetricsList()) {
            for (ScopeMetrics scope : resource.getScopeMetricsList()) {
                for (Metric metric : scope.getMetricsList()) {
                    List<NumberDataPoint> points =
                        metric.hasSum() ? metric.getSum().getDataPointsList() : metric.getGauge().getDataPointsList();
                    for (NumberDataPoint point : points) {
                        TreeSet<String> labels = new TreeSet<>();
                        resource.getResource().getAttributesList().stream().map(KeyValue::getKey).forEach(labels::add);
                        point.getAttributesList().stream().map(KeyValue::getKey).forEach(labels::add);
                        double value = point.hasAsInt() ? point.getAsInt() : point.getAsDouble();
                        lines.append(clientId).append('\t').append(metric.getName())
                            .append('\t').append(metric.getSum().getIsMonotonic()).append('\t').append(value)
                            .append('\t').append(String.join(",", labels)).append('\n');
                    }
                }
            }
        }
        Files.writeString(file, lines, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }
}

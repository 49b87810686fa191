import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies every committed record of a topic to another topic exactly once, partition by partition.
 *
 * Arguments: bootstrap servers, consumer group, source, target, transactional id, further settings as key=value (with
 * the prefix "consumer." for the consumer). Records and source offsets are committed in one transaction, so that the
 * next instance continues after the last commit. The program runs until it is killed.
 */
public final class ExactlyOnceCopy {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final int COMMIT_ATTEMPTS = 20;

    private final Map<String, String> settings = new HashMap<>();
    private final String source;
    private final String target;

    private ExactlyOnceCopy(String[] arguments) {
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("consumer.group.id", arguments[1]);
        source = arguments[2];
        target = arguments[3];
        settings.put("transactional.id", arguments[4]);
        for (int at = 5; at < arguments.length; at++) {
            String[] parts = arguments[at].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
    }

    public static void main(String[] arguments) {
        ExactlyOnceCopy copy = new ExactlyOnceCopy(arguments);
        while (true) {
            try {
                copy.run();
            } catch (KafkaException error) {
                // Create both clients again. The initialization of the new producer aborts an open transaction.
                System.out.println("again, after " + error);
            }
        }
    }

    private Properties properties(boolean ofConsumer) {
        Properties chosen = new Properties();
        settings.forEach((key, value) -> {
            boolean consumers = key.startsWith("consumer.");
            if (key.equals("bootstrap.servers") || consumers == ofConsumer) {
                chosen.put(consumers ? key.substring("consumer.".length()) : key, value);
            }
        });
        chosen.put("reconnect.backoff.max.ms", "200");
        return chosen;
    }

    private void run() {
        Properties ofProducer = properties(false);
        ofProducer.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class);
        ofProducer.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, ByteArraySerializer.class);
        Properties ofConsumer = properties(true);
        ofConsumer.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        ofConsumer.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        ofConsumer.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        ofConsumer.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        ofConsumer.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(ofProducer);
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(ofConsumer)) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    copy(records, consumer, producer);
                }
            }
        }
    }

    private void copy(
            ConsumerRecords<byte[], byte[]> records,
            KafkaConsumer<byte[], byte[]> consumer,
            KafkaProducer<byte[], byte[]> producer) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(target, record.partition(), record.key(), record.value()));
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            next.put(partition, new OffsetAndMetadata(record.offset() + 1));
        }
        try {
            producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
            commit(producer);
        } catch (CommitFailedException error) {
            // The group has rebalanced without this member, and another member owns the partitions.
            producer.abortTransaction();
            throw error;
        }
    }

    private static void commit(KafkaProducer<byte[], byte[]> producer) {
        for (int attempt = 1; ; attempt++) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                // The outcome of the commit is unknown. Another call of commitTransaction returns the outcome.
                if (attempt == COMMIT_ATTEMPTS) {
                    throw error;
                }
            }
        }
    }
}

import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Commits one transaction after the other, as fast as one Java producer can.
 *
 * Arguments: the bootstrap address, the topic (also the transactional id), the number of partitions, the records per
 * transaction, and the size of a record in bytes. Each line of standard input is a number of seconds. The program then
 * commits for this time and prints the commits per second.
 */
public final class TransactionLoop {
    private TransactionLoop() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("transactional.id", arguments[1]);
        properties.put("linger.ms", "0");
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        int records = Integer.parseInt(arguments[3]);
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            System.out.println("ready");
            byte[] line = new byte[64];
            for (int length = System.in.read(line); length > 0; length = System.in.read(line)) {
                double seconds = Double.parseDouble(new String(line, 0, length).trim());
                long begun = System.nanoTime();
                long end = begun + (long) (seconds * 1e9);
                long commits = 0;
                while (System.nanoTime() < end) {
                    producer.beginTransaction();
                    for (int number = 0; number < records; number++) {
                        producer.send(new ProducerRecord<>(topic, number % partitions, null, value));
                    }
                    producer.commitTransaction();
                    commits++;
                }
                System.out.println(commits / ((System.nanoTime() - begun) / 1e9));
            }
        }
    }
}

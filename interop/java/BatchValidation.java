import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.StringJoiner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;

/**
 * Validates batches as the log of a leader does, with offsets from 0 and leader epoch 0.
 *
 * Reads one line per batch: the compression.type of the topic, its message.timestamp.type, its
 * message.timestamp.before.max.ms and message.timestamp.after.max.ms, whether it is compacted, the time in ms, and the
 * bytes in hexadecimal digits. Prints "accepted", whether a consumer can read the result, and the bytes of the result,
 * or "rejected", the error, its message and the index and message of each invalid record, separated by tabs.
 */
public final class BatchValidation {
    private static final TopicPartition PARTITION = new TopicPartition("t", 0);

    private BatchValidation() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(verdict(line.split(" ")));
        }
        out.flush();
    }

    private static String verdict(String[] given) {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(given[6])));
        MemoryRecords result;
        try {
            MutableRecordBatch batch = records.batches().iterator().next();
            batch.ensureValid();
            CompressionType source = batch.compressionType();
            CompressionType target = given[0].equals("producer") ? source : CompressionType.forName(given[0]);
            result = new LogValidator(
                records,
                PARTITION,
                fixed(Long.parseLong(given[5])),
                source,
                Compression.of(target).build(),
                Boolean.parseBoolean(given[4]),
                (byte) 2,
                TimestampType.forName(given[1]),
                Long.parseLong(given[2]),
                Long.parseLong(given[3]),
                0,
                AppendOrigin.CLIENT
            ).validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(0), new NoMetrics(), BufferSupplier.create()).validatedRecords();
        } catch (RecordValidationException error) {
            StringJoiner parts = new StringJoiner("\t");
            parts.add("rejected").add(Errors.forException(error.invalidException()).name());
            parts.add(error.invalidException().getMessage());
            for (RecordError one : error.recordErrors()) {
                parts.add(one.batchIndex + " " + one.message);
            }
            return parts.toString();
        } catch (RuntimeException | Error error) {
            // snappy-java throws an Error for a block of more than 512 MiB.
            return "rejected\t" + Errors.forException(error).name() + "\t" + text(error);
        }
        ByteBuffer bytes = result.buffer().duplicate();
        byte[] found = new byte[bytes.remaining()];
        bytes.get(found);
        return "accepted\t" + readable(result) + "\t" + HexFormat.of().formatHex(found);
    }

    private static String text(Throwable error) {
        return String.valueOf(error.getMessage()).replaceAll("[\\t\\n]", " ");
    }

    private static String readable(MemoryRecords records) {
        try {
            for (Iterator<? extends Record> each = records.batches().iterator().next().streamingIterator(BufferSupplier.create()); each.hasNext(); ) {
                each.next();
            }
            return "readable";
        } catch (RuntimeException | Error error) {
            return "unreadable " + text(error);
        }
    }

    private static Time fixed(long nowMs) {
        return (Time) Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class}, (proxy, method, values) ->
            method.getName().equals("milliseconds") ? Long.valueOf(nowMs) : method.invoke(Time.SYSTEM, values));
    }

    private static final class NoMetrics implements LogValidator.MetricsRecorder {
        @Override
        public void recordInvalidMagic() {
        }

        @Override
        public void recordInvalidOffset() {
        }

        @Override
        public void recordInvalidSequence() {
        }

        @Override
        public void recordInvalidChecksums() {
        }

        @Override
        public void recordNoKeyCompactedTopic() {
        }
    }
}

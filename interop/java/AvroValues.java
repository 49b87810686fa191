import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.util.Utf8;

/**
 * Writes random values with a writer's schema and reads them with a reader's schema, by Avro's Java library.
 *
 * Reads one JSON object per line: `seed`, `count`, and `pairs`, a list of pairs of schemas as text. The values are
 * written with the first pair, and read with the first pair that can read them. Prints a JSON array: for each value
 * its bytes in hexadecimal, and either the value, as `shown` describes it, or the error of the first pair.
 */
public final class AvroValues {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();
    /** A number that becomes another float if it becomes a double first. */
    private static final long HALFWAY = (1L << 60) + (1L << 36) + 1;
    private static final String[] TEXTS = {"", "A", "S0", "S1", "text", "\u00e4\u20ac", "\ud83d\ude00", "7", "null"};

    private AvroValues() {
    }

    private record Pair(Schema writer, Schema reader) {
        static Pair of(JsonNode texts) {
            return new Pair(parsed(texts.get(0)), parsed(texts.get(1)));
        }

        private static Schema parsed(JsonNode text) {
            return new Schema.Parser().parse(text.asText());
        }

        Object read(byte[] bytes) throws IOException {
            return new GenericDatumReader<>(writer, reader).read(null, DecoderFactory.get().binaryDecoder(bytes, null));
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = MAPPER.readTree(line);
            List<Pair> pairs = new ArrayList<>();
            question.get("pairs").forEach(texts -> pairs.add(Pair.of(texts)));
            Random random = new Random(question.get("seed").asLong());
            ArrayNode answers = MAPPER.createArrayNode();
            for (int i = 0; i < question.get("count").asInt(); i++) {
                Schema writer = pairs.get(0).writer();
                byte[] bytes = written(writer, randomValue(writer, random));
                answers.add(answer(pairs, bytes));
            }
            out.println(answers);
        }
        out.flush();
    }

    private static ObjectNode answer(List<Pair> pairs, byte[] bytes) {
        ObjectNode answer = MAPPER.createObjectNode().put("bytes", HEX.formatHex(bytes));
        for (Pair pair : pairs) {
            try {
                JsonNode value = shown(pair.reader(), pair.read(bytes));
                answer.set("value", value);
                answer.remove("error");
                return answer;
            } catch (IOException | AvroRuntimeException error) {
                if (!answer.has("error")) {
                    answer.put("error", String.valueOf(error.getMessage()));
                }
            }
        }
        return answer;
    }

    private static byte[] written(Schema schema, Object value) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<>(schema).write(value, encoder);
        encoder.flush();
        return bytes.toByteArray();
    }

    /** Text and bytes are in hexadecimal, floating-point numbers are their bits, and a union names its branch. */
    private static JsonNode shown(Schema schema, Object value) {
        switch (schema.getType()) {
            case UNION:
                int branch = GenericData.get().resolveUnion(schema, value);
                return MAPPER.createArrayNode().add(branch).add(shown(schema.getTypes().get(branch), value));
            case RECORD:
                ObjectNode fields = MAPPER.createObjectNode();
                schema.getFields().forEach(
                    field -> fields.set(field.name(), shown(field.schema(), ((GenericRecord) value).get(field.pos()))));
                return fields;
            case ARRAY:
                ArrayNode items = MAPPER.createArrayNode();
                ((List<?>) value).forEach(item -> items.add(shown(schema.getElementType(), item)));
                return items;
            case MAP:
                ObjectNode entries = MAPPER.createObjectNode();
                ((Map<?, ?>) value).forEach((key, item) -> entries.set(key.toString(), shown(schema.getValueType(), item)));
                return entries;
            case ENUM:
                return MAPPER.getNodeFactory().textNode(value.toString());
            case STRING:
                Utf8 text = value instanceof Utf8 utf8 ? utf8 : new Utf8(value.toString());
                return MAPPER.getNodeFactory().textNode(HEX.formatHex(text.getBytes(), 0, text.getByteLength()));
            case BYTES:
                ByteBuffer buffer = ((ByteBuffer) value).duplicate();
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                return MAPPER.getNodeFactory().textNode(HEX.formatHex(bytes));
            case FIXED:
                return MAPPER.getNodeFactory().textNode(HEX.formatHex(((GenericFixed) value).bytes()));
            case INT:
                return MAPPER.getNodeFactory().numberNode((Integer) value);
            case LONG:
                return MAPPER.getNodeFactory().numberNode((Long) value);
            case FLOAT:
                return MAPPER.getNodeFactory().numberNode(Float.floatToRawIntBits((Float) value));
            case DOUBLE:
                return MAPPER.getNodeFactory().numberNode(Double.doubleToRawLongBits((Double) value));
            case BOOLEAN:
                return MAPPER.getNodeFactory().booleanNode((Boolean) value);
            default:
                return MAPPER.nullNode();
        }
    }

    private static Object randomValue(Schema schema, Random random) {
        switch (schema.getType()) {
            case UNION:
                return randomValue(schema.getTypes().get(random.nextInt(schema.getTypes().size())), random);
            case RECORD:
                GenericRecord record = new GenericData.Record(schema);
                schema.getFields().forEach(field -> record.put(field.pos(), randomValue(field.schema(), random)));
                return record;
            case ARRAY:
                List<Object> items = new ArrayList<>();
                for (int i = random.nextInt(3); i > 0; i--) {
                    items.add(randomValue(schema.getElementType(), random));
                }
                return items;
            case MAP:
                Map<String, Object> entries = new LinkedHashMap<>();
                for (int i = random.nextInt(3); i > 0; i--) {
                    entries.put(TEXTS[random.nextInt(TEXTS.length)], randomValue(schema.getValueType(), random));
                }
                return entries;
            case ENUM:
                List<String> symbols = schema.getEnumSymbols();
                return new GenericData.EnumSymbol(schema, symbols.get(random.nextInt(symbols.size())));
            case FIXED:
                return new GenericData.Fixed(schema, randomBytes(schema, schema.getFixedSize(), random));
            case STRING:
                return TEXTS[random.nextInt(TEXTS.length)];
            case BYTES:
                return ByteBuffer.wrap(randomBytes(schema, random.nextInt(6), random));
            case INT:
                return (int) randomLong(32, random);
            case LONG:
                // A time in milliseconds must fit a column in microseconds.
                boolean isMillis = schema.getLogicalType() != null && schema.getLogicalType().getName().endsWith("-millis");
                if (!isMillis && random.nextInt(8) == 0) {
                    return HALFWAY;
                }
                return randomLong(isMillis ? 50 : 64, random);
            case FLOAT:
                return random.nextBoolean() ? Float.intBitsToFloat(random.nextInt()) : random.nextFloat();
            case DOUBLE:
                return random.nextBoolean() ? Double.longBitsToDouble(random.nextLong()) : random.nextDouble();
            case BOOLEAN:
                return random.nextBoolean();
            default:
                return null;
        }
    }

    /** Numbers of every size: a random number shifted by a random number of bits. */
    private static long randomLong(int bits, Random random) {
        return random.nextLong() >> 64 - 1 - random.nextInt(bits);
    }

    private static byte[] randomBytes(Schema schema, int size, Random random) {
        LogicalType logical = schema.getLogicalType();
        if (logical instanceof LogicalTypes.Decimal decimal) {
            BigInteger limit = BigInteger.TEN.pow(decimal.getPrecision());
            BigInteger number = new BigInteger(limit.bitLength(), random).mod(limit);
            byte[] bytes = (random.nextBoolean() ? number : number.negate()).toByteArray();
            return schema.getType() == Schema.Type.FIXED ? extended(bytes, size) : bytes;
        }
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) (random.nextInt(8) == 0 ? random.nextInt() : 'a' + random.nextInt(26));
        }
        return bytes;
    }

    private static byte[] extended(byte[] number, int size) {
        byte[] bytes = new byte[size];
        java.util.Arrays.fill(bytes, (byte) (number[0] < 0 ? 0xff : 0));
        System.arraycopy(number, 0, bytes, size - number.length, number.length);
        return bytes;
    }
}

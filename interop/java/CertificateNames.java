import com.fasterxml.jackson.core.json.JsonWriteFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import javax.security.auth.x500.X500Principal;

/**
 * Formats the subjects and subject alternative names of certificates, as Kafka's principals and checks use them.
 *
 * Reads the DER of one certificate per line, in hexadecimal. Prints a JSON array: the subject's name, its canonical
 * name, and types and values of the alternative names. A value that is not text is printed as an empty text. If the
 * certificate is invalid, prints null.
 */
public final class CertificateNames {
    private CertificateNames() {
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = JsonMapper.builder().enable(JsonWriteFeature.ESCAPE_NON_ASCII).build();
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                byte[] encoded = HexFormat.of().parseHex(line);
                X509Certificate certificate =
                    (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(encoded));
                X500Principal subject = certificate.getSubjectX500Principal();
                List<Object> answer = new ArrayList<>();
                answer.add(subject.getName());
                answer.add(subject.getName(X500Principal.CANONICAL));
                Collection<List<?>> names = certificate.getSubjectAlternativeNames();
                List<List<?>> texts = new ArrayList<>();
                if (names != null) {
                    for (List<?> name : names) {
                        texts.add(List.of(name.get(0), name.get(1) instanceof String ? name.get(1) : ""));
                    }
                }
                answer.add(texts);
                out.println(mapper.writeValueAsString(answer));
            } catch (CertificateException invalid) {
                out.println("null");
            }
        }
        out.flush();
    }
}

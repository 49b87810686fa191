import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.Certificate;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedKeyManager;
import javax.net.ssl.X509TrustManager;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.ssl.DefaultSslEngineFactory;

/**
 * Loads key stores and trust stores with Kafka's DefaultSslEngineFactory.
 *
 * <p>An input line has a name and settings, as NAME=VALUE with the value in Base64, separated by blanks. The value
 * of a location is the content of the file. The output line is "error", or the trusted certificates, the chains of the keys that the key manager chooses, and the aliases with their first
 * certificates. Each certificate is the beginning of its SHA-256 hash.
 *
 * <p>With the arguments FILE, PASSWORD and KEY_PASSWORD, it changes the password of the keys in a store.
 */
public class TlsStores {
    private static final Set<String> TEXTS = Set.of(
        "ssl.keystore.type", "ssl.keystore.location", "ssl.truststore.type", "ssl.truststore.location");
    private static final String[] ALGORITHMS = {"RSA", "EC"};

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            changeKeyPassword(Path.of(arguments[0]), arguments[1].toCharArray(), arguments[2].toCharArray());
            return;
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> settings = new HashMap<>();
            settings.put("ssl.protocol", "TLSv1.3");
            settings.put("ssl.cipher.suites", List.of());
            settings.put("ssl.enabled.protocols", List.of());
            String[] words = line.trim().split(" ");
            for (String setting : Arrays.copyOfRange(words, 1, words.length)) {
                String[] parts = setting.split("=", 2);
                byte[] bytes = Base64.getDecoder().decode(parts[1]);
                String value = new String(bytes, StandardCharsets.UTF_8);
                if (parts[0].endsWith(".location")) {
                    Path path = Files.createTempFile("store", "");
                    path.toFile().deleteOnExit();
                    Files.write(path, bytes);
                    value = path.toString();
                }
                settings.put(parts[0], TEXTS.contains(parts[0]) ? value : new Password(value));
            }
            String answer;
            try {
                answer = describe(settings);
            } catch (Exception error) {
                answer = "error";
            }
            out.println(answer);
        }
    }

    /** Changes the password of the keys in a PKCS12 store, but not of the store. keytool cannot do that. */
    private static void changeKeyPassword(Path path, char[] old, char[] changed) throws Exception {
        KeyStore store = KeyStore.getInstance(path.toFile(), old);
        for (String alias : Collections.list(store.aliases())) {
            store.setKeyEntry(alias, store.getKey(alias, old), changed, store.getCertificateChain(alias));
        }
        try (OutputStream out = Files.newOutputStream(path)) {
            store.store(out, old);
        }
    }

    private static String describe(Map<String, Object> settings) throws Exception {
        DefaultSslEngineFactory factory = new DefaultSslEngineFactory();
        factory.configure(settings);
        return trusted(factory.truststore()) + "|" + chosen(factory.keystore(), settings) + "|"
            + entries(factory.keystore());
    }

    private static String trusted(KeyStore store) throws Exception {
        if (store == null) {
            return "";
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance("PKIX");
        factory.init(store);
        List<String> found = new ArrayList<>();
        for (TrustManager manager : factory.getTrustManagers()) {
            for (X509Certificate certificate : ((X509TrustManager) manager).getAcceptedIssuers()) {
                found.add(fingerprint(certificate));
            }
        }
        Collections.sort(found);
        return String.join(",", found);
    }

    private static String chosen(KeyStore store, Map<String, Object> settings) throws Exception {
        if (store == null) {
            return "";
        }
        Password password = (Password) settings.get("ssl.key.password");
        if (password == null) {
            password = (Password) settings.get("ssl.keystore.password");
        }
        KeyManagerFactory factory = KeyManagerFactory.getInstance("SunX509");
        factory.init(store, password == null ? null : password.value().toCharArray());
        X509ExtendedKeyManager manager = (X509ExtendedKeyManager) factory.getKeyManagers()[0];
        List<String> found = new ArrayList<>();
        for (String algorithm : ALGORITHMS) {
            String alias = manager.chooseEngineServerAlias(algorithm, null, null);
            if (alias != null) {
                List<String> chain = new ArrayList<>();
                for (X509Certificate certificate : manager.getCertificateChain(alias)) {
                    chain.add(fingerprint(certificate));
                }
                found.add(String.join(",", chain));
            }
        }
        Collections.sort(found);
        return String.join(" ", found);
    }

    private static String entries(KeyStore store) throws Exception {
        List<String> found = new ArrayList<>();
        if (store != null) {
            for (String alias : Collections.list(store.aliases())) {
                Certificate certificate = store.getCertificate(alias);
                if (certificate instanceof X509Certificate) {
                    found.add(alias + ":" + fingerprint(certificate));
                }
            }
        }
        return String.join(",", found);
    }

    private static String fingerprint(Certificate certificate) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(certificate.getEncoded());
        return HexFormat.of().formatHex(digest).substring(0, 12);
    }
}

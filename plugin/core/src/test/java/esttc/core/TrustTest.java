package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

class TrustTest {
    private static final char[] PASSWORD = "changeit".toCharArray();

    @TempDir
    Path folder;

    @Test
    void onlyTheCertificatesOfTheFileAreTrusted() throws Exception {
        Process own = making("own", "IP:127.0.0.1"); // most of this test's time is that of two JVMs
        Process elsewhere = making("elsewhere", "DNS:example.org");
        made("own", own);
        made("elsewhere", elsewhere);
        assertEquals(List.of("a"), asked("own", "own"));
        assertEquals(SidecarFailure.Kind.UNAVAILABLE, assertThrows(SidecarFailure.class, () -> asked("own", "elsewhere")).kind());
        assertEquals(SidecarFailure.Kind.UNAVAILABLE, assertThrows(SidecarFailure.class, () -> asked("own", null)).kind());
        // Signed by whom it should be, and for another host.
        assertThrows(SidecarFailure.class, () -> asked("elsewhere", "elsewhere"));
    }

    @Test
    void aFileWithoutCertificatesStopsTheNode() throws Exception {
        Path empty = Files.writeString(folder.resolve("empty.pem"), "");
        for (Path file : List.of(empty, Files.writeString(folder.resolve("no.pem"), "no certificate"), folder.resolve("absent.pem"))) {
            String said = assertThrows(IllegalArgumentException.class, () -> Trust.of(file, "setting")).getMessage();
            assertTrue(said.startsWith("[setting] file"), said);
        }
    }

    @Test
    void aTokenIsOneLineOfVisibleCharacters() throws Exception {
        assertEquals("a-token", TokenFile.read(Files.writeString(folder.resolve("token"), "a-token\n"), "setting"));
        for (String wrong : List.of("", "\n", "two\nlines", "with space", "ümlaut")) {
            Path file = Files.writeString(folder.resolve("wrong"), wrong);
            assertThrows(IllegalArgumentException.class, () -> TokenFile.read(file, "setting"), wrong);
        }
        assertThrows(IllegalArgumentException.class, () -> TokenFile.read(folder.resolve("absent"), "setting"));
    }

    private List<String> asked(String server, String trusted) throws Exception {
        HttpsServer https = HttpsServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        https.setHttpsConfigurator(new HttpsConfigurator(identity(server)));
        byte[] answer = FramesTest.cbor(Map.of("version", 1, "documents", List.of(Map.of("error", "a"))));
        https.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        https.start();
        URI url = URI.create("https://127.0.0.1:" + https.getAddress().getPort());
        SSLContext tls = trusted == null ? null : Trust.of(folder.resolve(trusted + ".pem"), "setting");
        SidecarConfig config = new SidecarConfig(url, null, SidecarConfig.LOOPBACK, tls, 10_000, 40_000, 60_000, 4, 1000, 1000, 9, 100);
        try (SidecarClient client = new SidecarClient(config, new Stats(), (what, error) -> {})) {
            return client.encode("i", List.of(Map.of()), 40_000).stream().map(one -> (String) one.get("error")).toList();
        } finally {
            https.stop(0);
        }
    }

    /** Begins to make a key with a certificate that signs itself, by the JDK's own tool. */
    private Process making(String name, String host) throws Exception {
        return new ProcessBuilder(
            Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-J-XX:TieredStopAtLevel=1",
            "-genkeypair", "-keyalg", "EC", "-alias", name, "-dname", "CN=" + name, "-ext", "SAN=" + host,
            "-storetype", "PKCS12", "-keystore", folder.resolve(name + ".p12").toString(), "-storepass", "changeit"
        ).redirectErrorStream(true).start();
    }

    /** Waits for a key, and writes its certificate as PEM. */
    private void made(String name, Process process) throws Exception {
        String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(process.waitFor(60, TimeUnit.SECONDS) && process.exitValue() == 0, said);
        String body = Base64.getMimeEncoder().encodeToString(store(name).getCertificate(name).getEncoded());
        String pem = "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n";
        Files.writeString(folder.resolve(name + ".pem"), pem);
    }

    private KeyStore store(String name) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(folder.resolve(name + ".p12"))) {
            store.load(in, PASSWORD);
        }
        return store;
    }

    private SSLContext identity(String name) throws Exception {
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store(name), PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        return context;
    }
}

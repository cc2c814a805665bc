package esttc.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

import esttc.core.SidecarFailure.Kind;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

class SidecarClientTest {
    private static final List<Candidate> WINDOW = List.of(
        new Candidate("a", "e", 3, "i"), new Candidate(null, null, 2, "i"), new Candidate("b", "e", 1, "i")
    );
    private static final byte[] RANKING = FramesTest.cbor(FramesTest.ranking());
    private static final byte[] MISSING = FramesTest.cbor(
        Map.of("version", 1, "missing", List.of("b"), "fields", List.of("ttc.tokens"))
    );

    private interface Behaviour {
        void answer(HttpExchange exchange, int request) throws IOException;
    }

    private final List<String> log = Collections.synchronizedList(new ArrayList<>());
    private final List<byte[]> received = Collections.synchronizedList(new ArrayList<>());
    private final List<String> tokens = Collections.synchronizedList(new ArrayList<>());
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private volatile Behaviour behaviour = (exchange, request) -> reply(exchange, 200, RANKING);
    private HttpServer server;
    private SidecarClient client;

    @BeforeEach
    void start() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(threads);
        server.createContext("/_ttc/", exchange -> {
            received.add(exchange.getRequestBody().readAllBytes());
            tokens.add(exchange.getRequestHeaders().getFirst("authorization"));
            try (exchange) {
                behaviour.answer(exchange, received.size());
            }
        });
        server.start();
        client = client(config(url(), 4));
    }

    @AfterEach
    void stop() {
        client.close();
        server.stop(0);
        threads.shutdownNow();
    }

    private URI url() {
        return URI.create("http://127.0.0.1:" + server.getAddress().getPort());
    }

    private static SidecarConfig config(URI url, int inFlight) {
        return config(url, inFlight, 40_000, 60_000);
    }

    private static SidecarConfig config(URI url, int inFlight, double timeout, double most) {
        return new SidecarConfig(url, "secret", SidecarConfig.LOOPBACK, null, 10_000, timeout, most, inFlight, 100, 1000, 3, 150);
    }

    private SidecarClient client(SidecarConfig config) {
        return new SidecarClient(config, new Stats(), (what, error) -> log.add(what));
    }

    private static void reply(HttpExchange exchange, int status, byte[] body) throws IOException {
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
    }

    private static void error(HttpExchange exchange, int status, String type) throws IOException {
        reply(exchange, status, FramesTest.cbor(Map.of("error", Map.of("type", type, "reason", "because"), "status", status)));
    }

    private Answer.Ranking score(Object... pairs) {
        return client.score(Section.of(SectionTest.values(pairs)), 10, WINDOW, (hashes, fields, budget) -> Map.of());
    }

    private Kind failure(Object... pairs) {
        return assertThrows(SidecarFailure.class, () -> score(pairs)).kind();
    }

    @Test
    void aWarmWindowIsOneRoundTrip() {
        assertArrayEquals(new int[] { 2, 0, 1 }, score().order());
        assertEquals(1, received.size());
        assertEquals("Bearer secret", tokens.get(0));
        assertEquals(1L, client.stats().asMap().get("applied"));
        assertEquals(0, client.stats().asMap().get("in_flight"));
    }

    @Test
    void whatIsMissingIsSentOnce() {
        behaviour = (exchange, request) -> reply(exchange, 200, request == 1 ? MISSING : RANKING);
        byte[] blob = "some bytes of a document".getBytes(StandardCharsets.UTF_8);
        client.score(Section.of(SectionTest.values()), 10, WINDOW, (hashes, fields, budget) -> {
            assertEquals(List.of("b"), hashes);
            assertEquals(List.of("ttc.tokens"), fields);
            budget.take(blob.length);
            return Map.of("b", Map.of("ttc.tokens", blob));
        });
        assertEquals(2, received.size());
        String sent = new String(received.get(1), StandardCharsets.ISO_8859_1);
        assertTrue(sent.contains("some bytes of a document"));
    }

    @Test
    void askingForEverIsAFault() {
        behaviour = (exchange, request) -> reply(exchange, 200, MISSING);
        assertEquals(Kind.PROTOCOL, failure());
        assertEquals(3, received.size());
    }

    @Test
    void memoryHasBounds() {
        behaviour = (exchange, request) -> reply(exchange, 200, MISSING);
        FeatureSource greedy = (hashes, fields, budget) -> {
            budget.take(101);
            return Map.of();
        };
        SidecarFailure failure = assertThrows(
            SidecarFailure.class,
            () -> client.score(Section.of(SectionTest.values()), 10, WINDOW, greedy)
        );
        assertEquals(Kind.TOO_LARGE, failure.kind());
        for (int number = 0; number < 20; number++) { // what was taken is given back
            assertThrows(SidecarFailure.class, () -> client.score(Section.of(SectionTest.values()), 10, WINDOW, (h, f, budget) -> {
                budget.take(100);
                return Map.of();
            }));
        }
        behaviour = (exchange, request) -> reply(exchange, 200, new byte[(8 << 20) + 1]);
        assertEquals(Kind.PROTOCOL, failure());
    }

    @ParameterizedTest
    @CsvSource({
        "400, ttc_protocol_version_exception, PROTOCOL",
        "400, ttc_protocol_exception, PROTOCOL",
        "401, security_exception, UNAUTHORIZED",
        "413, content_too_long_exception, TOO_LARGE",
        "429, rejected_execution_exception, BUSY",
        "503, ttc_pending_features_exception, NO_FEATURES",
        "503, ttc_deadline_exceeded_exception, LATE",
        "500, ttc_scoring_exception, SIDECAR"
    })
    void refusalsAreTold(int status, String type, Kind expected) {
        behaviour = (exchange, request) -> error(exchange, status, type);
        assertEquals(expected, failure());
        @SuppressWarnings("unchecked")
        Map<String, Object> reasons = (Map<String, Object>) client.stats().asMap().get("first_pass_reasons");
        assertEquals(1L, reasons.get(expected.key()));
    }

    @Test
    void theCallersOwnMistakeIsTheCallers() {
        behaviour = (exchange, request) -> error(exchange, 400, "illegal_argument_exception");
        for (int number = 0; number < 10; number++) {
            assertEquals("because", assertThrows(SidecarRefusal.class, this::score).getMessage());
        }
        assertTrue(client.breaker().allows());
    }

    @Test
    void damagedAnswersAreFaults() {
        for (byte[] body : List.of(new byte[0], Arrays.copyOf(RANKING, RANKING.length / 2), "<html>".getBytes(StandardCharsets.UTF_8))) {
            behaviour = (exchange, request) -> reply(exchange, 200, body);
            client.breaker().succeeded();
            assertEquals(Kind.PROTOCOL, failure());
        }
        client.breaker().succeeded();
        behaviour = (exchange, request) -> reply(exchange, 502, "<html>".getBytes(StandardCharsets.UTF_8));
        assertEquals(Kind.PROTOCOL, failure());
        client.breaker().succeeded();
        behaviour = (exchange, request) -> exchange.sendResponseHeaders(302, -1);
        assertEquals(Kind.PROTOCOL, failure());
        client.breaker().succeeded();
        behaviour = (exchange, request) -> {
            exchange.sendResponseHeaders(200, RANKING.length);
            exchange.getResponseBody().write(RANKING, 0, 5); // and the connection ends
        };
        assertEquals(Kind.UNAVAILABLE, failure());
    }

    @Test
    void aSlowSidecarCostsNoMoreThanTheDeadline() {
        behaviour = (exchange, request) -> {
            try {
                Thread.sleep(5000);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        };
        client.close();
        client = client(config(url(), 4, 400, 800));
        for (Object[] told : new Object[][] { { "timeout", "100ms" }, {}, { "timeout", "1h" } }) {
            double expected = told.length == 0 ? 400 : told[1].equals("1h") ? 800 : 100;
            long started = System.nanoTime();
            assertEquals(Kind.LATE, failure(told));
            double took = (System.nanoTime() - started) / 1e6;
            assertTrue(took >= expected - 1 && took < expected + 2000, took + " ms");
        }
    }

    @Test
    void aCallersHasteOpensNoBreaker() {
        behaviour = (exchange, request) -> {
            try {
                Thread.sleep(50);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            reply(exchange, 200, RANKING);
        };
        for (int number = 0; number < 10; number++) {
            assertEquals(Kind.LATE, failure("timeout", "1ms"));
        }
        assertArrayEquals(new int[] { 2, 0, 1 }, score().order());
    }

    @Test
    void aSidecarThatIsAwayIsAskedRarelyAndSaidOnce() throws Exception {
        server.stop(0);
        for (int number = 0; number < 3; number++) {
            assertEquals(Kind.UNAVAILABLE, failure());
        }
        long started = System.nanoTime();
        for (int number = 0; number < 1000; number++) {
            Kind kind = failure();
            assertTrue(kind == Kind.BREAKER_OPEN || kind == Kind.UNAVAILABLE);
        }
        assertTrue((System.nanoTime() - started) / 1e9 < 5);
        assertEquals(1, log.size(), () -> String.join("\n", log));
        assertEquals(1, client.breaker().opened());
    }

    @Test
    void itIsAskedAgainAfterAPause() throws Exception {
        behaviour = (exchange, request) -> reply(exchange, 200, new byte[0]);
        for (int number = 0; number < 3; number++) {
            failure();
        }
        assertEquals(Kind.BREAKER_OPEN, failure());
        behaviour = (exchange, request) -> reply(exchange, 200, RANKING);
        Thread.sleep(200);
        assertArrayEquals(new int[] { 2, 0, 1 }, score().order());
        assertEquals(List.of("the sidecar answers again"), log.subList(1, log.size()));
    }

    @Test
    void noMoreWaitThanAllowed() throws Exception {
        CountDownLatch asked = new CountDownLatch(4);
        CountDownLatch go = new CountDownLatch(1);
        behaviour = (exchange, request) -> {
            asked.countDown();
            try {
                go.await(60, TimeUnit.SECONDS);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            reply(exchange, 200, RANKING);
        };
        List<Future<Answer.Ranking>> waiting = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            waiting.add(threads.submit(() -> score("timeout", "40s")));
        }
        assertTrue(asked.await(30, TimeUnit.SECONDS));
        assertEquals(4, client.stats().asMap().get("in_flight"));
        assertEquals(Kind.BUSY, failure());
        go.countDown();
        for (Future<Answer.Ranking> one : waiting) {
            assertEquals(3, one.get(40, TimeUnit.SECONDS).order().length);
        }
    }

    @Test
    void documentsAreEncodedOrSaidToBePending() {
        Map<String, Object> one = Map.of("ttc", Map.of("state", "ready"));
        Map<String, Object> other = Map.of("error", "no text");
        byte[] answer = FramesTest.cbor(Map.of("version", 1, "documents", List.of(one, other)));
        behaviour = (exchange, request) -> reply(exchange, 200, answer);
        List<Map<String, Object>> two = List.of(Map.of("text", "a", "when", java.time.Instant.EPOCH), Map.of());
        assertEquals(List.of(one, other), client.encode("i", two, 40_000));
        assertEquals(1L, client.counted().get("documents_encoded"));
        for (Object damaged : new Object[] { List.of(one), List.of(one, Map.of()), List.of(one, "x"), "x" }) {
            behaviour = (exchange, request) -> reply(exchange, 200, FramesTest.cbor(Map.of("version", 1, "documents", damaged)));
            SidecarFailure failure = assertThrows(SidecarFailure.class, () -> client.encode("i", two, 40_000));
            assertTrue(failure.kind() == Kind.PROTOCOL || failure.kind() == Kind.BREAKER_OPEN);
        }
        assertTrue(client.breaker().allows()); // ingest that fails leaves searches alone
        List<Map<String, Object>> long_ = List.of(Map.of("text", "x".repeat(200)));
        try (SidecarClient fresh = client(config(url(), 1))) {
            assertEquals(Kind.TOO_LARGE, assertThrows(SidecarFailure.class, () -> fresh.encode("i", long_, 40_000)).kind());
        }
    }

    @Test
    void aWindowWithoutFeaturesAsksNobody() {
        List<Candidate> bare = List.of(new Candidate(null, null, 1, "i"));
        SidecarFailure failure = assertThrows(
            SidecarFailure.class,
            () -> client.score(Section.of(SectionTest.values()), 10, bare, (hashes, fields, budget) -> Map.of())
        );
        assertEquals(Kind.NO_FEATURES, failure.kind());
        assertEquals(0, received.size());
    }

    @Test
    void anAddressIsCheckedWhenTheNodeStarts() {
        for (String url : List.of("ftp://127.0.0.1", "127.0.0.1:9280", "http://user:secret@127.0.0.1", "http://127.0.0.1/?a=b", "http:///x")) {
            assertThrows(IllegalArgumentException.class, () -> config(URI.create(url), 1), url);
        }
        String said = assertThrows(IllegalArgumentException.class, () -> config(URI.create("http://10.0.0.1"), 1)).getMessage();
        assertTrue(said.contains("[ttc.sidecar.allowed_hosts]"));
        assertEquals("http://localhost:1/x/_ttc/score", config(URI.create("http://localhost:1/x/"), 1).endpoint("score").toString());
        try (SidecarClient without = client(config(null, 1))) {
            SidecarFailure failure = assertThrows(
                SidecarFailure.class,
                () -> without.score(Section.of(SectionTest.values()), 10, WINDOW, (hashes, fields, budget) -> Map.of())
            );
            assertEquals(Kind.NOT_CONFIGURED, failure.kind());
        }
    }
}

package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

class EncodingQueueTest {
    private static final int DOCUMENTS = 40;

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final List<Integer> requests = Collections.synchronizedList(new ArrayList<>());
    private final List<String> told = Collections.synchronizedList(new ArrayList<>());
    private final List<String> log = Collections.synchronizedList(new ArrayList<>());
    private final CountDownLatch all = new CountDownLatch(DOCUMENTS);
    private final AtomicInteger left = new AtomicInteger();
    private HttpServer server;
    private SidecarClient client;

    @BeforeEach
    void start() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(threads);
        server.createContext("/_ttc/encode", exchange -> {
            int documents = new String(exchange.getRequestBody().readAllBytes(), java.nio.charset.StandardCharsets.ISO_8859_1).split("number").length - 1;
            requests.add(documents);
            boolean refused = left.getAndDecrement() > 0;
            List<Object> encoded = Collections.nCopies(documents, Map.of("ttc", Map.of("state", "ready")));
            byte[] answer = FramesTest.cbor(
                refused
                    ? Map.of("error", Map.of("type", "rejected_execution_exception", "reason", "full"), "status", 429)
                    : Map.of("version", 1, "documents", encoded)
            );
            exchange.sendResponseHeaders(refused ? 429 : 200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
        URI url = URI.create("http://127.0.0.1:" + server.getAddress().getPort());
        SidecarConfig config = new SidecarConfig(url, "t", SidecarConfig.LOOPBACK, null, 10_000, 40_000, 60_000, 4, 100_000, 1000, 3, 150);
        client = new SidecarClient(config, new Stats(), (what, error) -> log.add(what));
    }

    @AfterEach
    void stop() {
        client.close();
        server.stop(0);
        threads.shutdownNow();
    }

    private EncodingQueue queue(Executor executor) {
        return new EncodingQueue(client, executor, 2, (what, error) -> log.add(what));
    }

    private void add(EncodingQueue queue, int number, String index) {
        queue.add(new EncodingQueue.Waiting(index, Map.of("number", number), 40_000, (ours, error) -> {
            told.add(ours == null ? error : (String) ours.get("state"));
            all.countDown();
            if (number == 7) {
                throw new IllegalStateException("whoever waited fails");
            }
        }));
    }

    @Test
    void documentsThatComeMeanwhileGoTogether() throws Exception {
        EncodingQueue queue = queue(threads);
        for (int number = 0; number < DOCUMENTS; number++) {
            add(queue, number, number < 30 ? "one" : "other");
        }
        assertTrue(all.await(30, TimeUnit.SECONDS));
        assertEquals(Collections.nCopies(DOCUMENTS, "ready"), told);
        assertEquals(DOCUMENTS, requests.stream().mapToInt(Integer::intValue).sum());
        assertTrue(requests.size() < 15, requests.toString());
        assertTrue(requests.stream().allMatch(documents -> documents <= 16), requests.toString());
        assertEquals(1, log.size(), log.toString());
    }

    @Test
    void aFullSidecarIsAskedAgain() throws Exception {
        left.set(5); // more than open the circuit breaker
        EncodingQueue queue = queue(threads);
        for (int number = 0; number < DOCUMENTS; number++) {
            add(queue, number, "one");
        }
        assertTrue(all.await(30, TimeUnit.SECONDS));
        assertEquals(Collections.nCopies(DOCUMENTS, "ready"), told);
    }

    @Test
    void whereNoThreadIsFreeNobodyWaitsForEver() throws Exception {
        EncodingQueue queue = queue(work -> {
            throw new RejectedExecutionException();
        });
        for (int number = 0; number < DOCUMENTS; number++) {
            add(queue, number, "one");
        }
        assertTrue(all.await(30, TimeUnit.SECONDS));
        assertEquals(Collections.nCopies(DOCUMENTS, "too many documents wait for the sidecar already"), told);
    }
}

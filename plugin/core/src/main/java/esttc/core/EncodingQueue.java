package esttc.core;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.BiConsumer;

/**
 * Documents of a node that wait for the sidecar. Engines hand them over one by one; those that come while an answer is
 * waited for are sent together.
 */
public final class EncodingQueue {
    private static final int TOGETHER = 16; // documents of one request: about 3 MB of features
    private static final int MOST = 10_000;
    private static final long LEAST_PAUSE_MS = 50;
    private static final long MOST_PAUSE_MS = 400;

    private final SidecarClient client;
    private final Executor executor;
    private final int workers;
    private final BiConsumer<String, Throwable> log;
    private final ArrayDeque<Waiting> waiting = new ArrayDeque<>();
    private int working;

    /**
     * A document that waits.
     *
     * @param index where it is to be indexed
     * @param source its fields, without ours
     * @param timeoutMs how long the answer to a request is waited for
     * @param done gets what belongs below {@code ttc}, or null and why there is nothing
     */
    public record Waiting(String index, Map<String, Object> source, double timeoutMs, BiConsumer<Map<String, Object>, String> done) {
        private boolean goesWith(Waiting other) {
            return index.equals(other.index) && timeoutMs == other.timeoutMs;
        }
    }

    /**
     * @param client asks the sidecar
     * @param executor threads that may wait
     * @param workers threads that are taken of it at the same time
     * @param log told when whoever gets an answer fails
     */
    public EncodingQueue(SidecarClient client, Executor executor, int workers, BiConsumer<String, Throwable> log) {
        this.client = client;
        this.executor = executor;
        this.workers = workers;
        this.log = log;
    }

    /** Has a document encoded. */
    public void add(Waiting document) {
        boolean full;
        boolean starts = false;
        synchronized (this) {
            full = waiting.size() >= MOST;
            if (!full) {
                waiting.add(document);
                starts = working < workers;
                working += starts ? 1 : 0;
            }
        }
        if (full) {
            tell(document, null, "too many documents wait for the sidecar already");
        } else if (starts) {
            start();
        }
    }

    private void start() {
        try {
            executor.execute(this::work);
        } catch (RuntimeException rejected) {
            for (Waiting left : leftBy()) {
                tell(left, null, "too many documents wait for the sidecar already");
            }
        }
    }

    /** One worker less; what waits where nobody is left to take it. */
    private synchronized List<Waiting> leftBy() {
        working--;
        if (working > 0) {
            return List.of();
        }
        List<Waiting> left = List.copyOf(waiting);
        waiting.clear();
        return left;
    }

    private void work() {
        for (List<Waiting> some = next(); !some.isEmpty(); some = next()) {
            encode(some);
        }
    }

    private synchronized List<Waiting> next() {
        List<Waiting> some = new ArrayList<>();
        while (!waiting.isEmpty() && some.size() < TOGETHER && (some.isEmpty() || waiting.peek().goesWith(some.get(0)))) {
            some.add(waiting.poll());
        }
        working -= some.isEmpty() ? 1 : 0;
        return some;
    }

    private void encode(List<Waiting> some) {
        List<Map<String, Object>> sources = some.stream().map(Waiting::source).toList();
        List<Map<String, Object>> encoded;
        try {
            encoded = patiently(some.get(0).index(), sources, some.get(0).timeoutMs());
        } catch (RuntimeException error) {
            some.forEach(one -> tell(one, null, error.getMessage()));
            return;
        }
        for (int place = 0; place < some.size(); place++) {
            @SuppressWarnings("unchecked")
            Map<String, Object> ours = (Map<String, Object>) encoded.get(place).get(Section.NAME);
            tell(some.get(place), ours, String.valueOf(encoded.get(place).get("error")));
        }
    }

    /** A sidecar that is full is asked again, for as long as its answer would be waited for. */
    private List<Map<String, Object>> patiently(String index, List<Map<String, Object>> sources, double timeoutMs) {
        long deadline = System.nanoTime() + (long) (timeoutMs * 1e6);
        while (true) {
            try {
                return client.encode(index, sources, Math.max(1, (deadline - System.nanoTime()) / 1e6));
            } catch (SidecarFailure failure) {
                long pause = ThreadLocalRandom.current().nextLong(LEAST_PAUSE_MS, MOST_PAUSE_MS);
                if (failure.kind() != SidecarFailure.Kind.BUSY || deadline - System.nanoTime() < pause * 1_000_000) {
                    throw failure;
                }
                sleep(pause, failure);
            }
        }
    }

    private static void sleep(long ms, SidecarFailure failure) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw failure;
        }
    }

    /** Whoever waits goes on with the document on this thread; what fails there must not stop the others. */
    private void tell(Waiting document, Map<String, Object> ours, String error) {
        try {
            document.done().accept(ours, error);
        } catch (RuntimeException failed) {
            log.accept("a document could not go on after the sidecar's answer", failed);
        }
    }
}

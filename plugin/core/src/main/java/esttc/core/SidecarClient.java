package esttc.core;

import esttc.core.SidecarFailure.Kind;

import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;

/**
 * Has windows scored by the sidecar, within a deadline and within bounds. Connections are kept and shared; a call blocks
 * its thread no longer than its deadline.
 */
public final class SidecarClient implements AutoCloseable {
    private static final Map<String, Integer> MOST_ANSWER_BYTES = Map.of("score", 8 << 20, "encode", 32 << 20);
    private static final int THREADS = 2;
    private static final int ROUND_TRIPS = 3; // asked, sent, and sent again where the memory has lost some meanwhile

    private final SidecarConfig config;
    private final Stats stats;
    private final CircuitBreaker breaker;
    private final CircuitBreaker ingestBreaker;
    private final BiConsumer<String, Throwable> log;
    private final Semaphore room;
    private final AtomicLong bytes = new AtomicLong();
    private final ExecutorService executor;
    private final HttpClient http;

    /**
     * @param config where the sidecar is, and the bounds
     * @param stats told about every window
     * @param log told when the sidecar goes away and comes back: once each, not for every window
     */
    public SidecarClient(SidecarConfig config, Stats stats, BiConsumer<String, Throwable> log) {
        this.config = config;
        this.stats = stats;
        this.log = log;
        this.breaker = new CircuitBreaker(config.failuresToOpen(), config.pauseMs() * 1_000_000, System::nanoTime);
        this.ingestBreaker = new CircuitBreaker(config.failuresToOpen(), config.pauseMs() * 1_000_000, System::nanoTime);
        this.room = new Semaphore(config.maxInFlight());
        this.executor = Executors.newFixedThreadPool(THREADS, work -> {
            Thread thread = new Thread(work, "es-ttc-sidecar");
            thread.setDaemon(true);
            return thread;
        });
        HttpClient.Builder builder = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NEVER)
            .connectTimeout(Duration.ofMillis(config.connectMs()))
            .executor(executor);
        if (config.tls() != null) {
            builder.sslContext(config.tls());
        }
        this.http = builder.build();
    }

    public Stats stats() {
        return stats;
    }

    public CircuitBreaker breaker() {
        return breaker;
    }

    /**
     * Has a window scored.
     *
     * @param section the search's section
     * @param windowSize ranks of the window
     * @param candidates the first pass, best first; not empty
     * @param source reads features that the sidecar does not have
     * @throws SidecarFailure it was not scored, for a reason that is counted
     * @throws SidecarRefusal the search itself is wrong
     */
    public Answer.Ranking score(Section section, int windowSize, List<Candidate> candidates, FeatureSource source) {
        long started = System.nanoTime();
        stats.windows.increment();
        try {
            Answer.Ranking ranking = guarded(section, windowSize, candidates, source, started);
            stats.applied.increment();
            return ranking;
        } catch (SidecarFailure failure) {
            stats.firstPass.get(failure.kind()).increment();
            throw failure;
        } catch (SidecarRefusal refusal) {
            stats.refused.increment();
            throw refusal;
        } finally {
            stats.nanos.add(System.nanoTime() - started);
        }
    }

    /**
     * Has a window scored; a failure is thrown only where the search says {@code on_error: fail}.
     *
     * @throws SidecarFailure it was not scored
     * @throws SidecarRefusal the search itself is wrong
     */
    public Attempt attempt(Section section, int windowSize, List<Candidate> candidates, FeatureSource source) {
        try {
            return new Attempt(score(section, windowSize, candidates, source), null);
        } catch (SidecarFailure failure) {
            if (section.failsOnError()) {
                throw failure;
            }
            return new Attempt(null, failure);
        }
    }

    /**
     * Has documents encoded; the caller is to run this on a thread that may wait.
     *
     * @param index where they are to be indexed
     * @param documents their sources
     * @param timeoutMs how long is waited
     * @return for each document a map with what belongs below {@code ttc}, or with an {@code error}
     * @throws SidecarFailure none was encoded
     * @throws SidecarRefusal none can be, for a reason that lies with the index
     */
    public List<Map<String, Object>> encode(String index, List<Map<String, Object>> documents, double timeoutMs) {
        stats.documents.add(documents.size());
        if (config.url() == null) {
            throw notConfigured();
        }
        if (!ingestBreaker.allows()) {
            throw new SidecarFailure(Kind.BREAKER_OPEN, "the sidecar has failed several times in a row, and is not asked now");
        }
        Frame frame = Frames.documents(timeoutMs, index, documents);
        if (frame.length() > config.maxFrameBytes()) {
            throw new SidecarFailure(Kind.TOO_LARGE, "the documents are more than [ttc.sidecar.max_frame] " + config.maxFrameBytes() + " bytes");
        }
        long deadline = System.nanoTime() + (long) (timeoutMs * 1e6);
        try {
            byte[] answer = checked(sent("encode", frame, deadline, true));
            List<Map<String, Object>> encoded = Frames.encoded(answer, documents.size());
            ingestBreaker.succeeded();
            stats.encoded.add(encoded.stream().filter(one -> one.get("error") == null).count());
            return encoded;
        } catch (SidecarFailure failure) {
            boolean away = failure.kind() != Kind.TOO_LARGE && failure.kind() != Kind.BUSY;
            if (away && ingestBreaker.failed()) {
                log.accept("documents stay pending for now: " + failure.getMessage(), null);
            }
            throw failure;
        }
    }

    private static SidecarFailure notConfigured() {
        return new SidecarFailure(Kind.NOT_CONFIGURED, "no sidecar is configured: set [ttc.sidecar.url] on every node");
    }

    /** What has been counted, and the state of the circuit breaker. */
    public Map<String, Object> counted() {
        Map<String, Object> all = new LinkedHashMap<>(stats.asMap());
        all.put("breaker", Map.of("open", breaker.isOpen(), "opened", breaker.opened()));
        return all;
    }

    private Answer.Ranking guarded(Section section, int windowSize, List<Candidate> candidates, FeatureSource source, long started) {
        if (config.url() == null) {
            throw notConfigured();
        }
        if (candidates.stream().allMatch(candidate -> candidate.hash() == null)) {
            throw new SidecarFailure(Kind.NO_FEATURES, "no document of the window has features (ttc.hash)");
        }
        if (!room.tryAcquire()) {
            throw new SidecarFailure(Kind.BUSY, config.maxInFlight() + " windows wait for the sidecar already");
        }
        stats.inFlight.incrementAndGet();
        try {
            if (!breaker.allows()) {
                throw new SidecarFailure(Kind.BREAKER_OPEN, "the sidecar has failed several times in a row, and is not asked now");
            }
            double budget = Math.min(section.timeoutMs(config.timeoutMs()), config.maxTimeoutMs());
            Window window = new Window(section, windowSize, candidates, started + (long) (budget * 1e6), budget >= config.timeoutMs());
            return scored(window, source);
        } finally {
            stats.inFlight.decrementAndGet();
            room.release();
        }
    }

    private Answer.Ranking scored(Window window, FeatureSource source) {
        Map<String, Map<String, byte[]>> features = Map.of();
        Reserved reserved = new Reserved();
        try {
            for (int trip = 0; trip < ROUND_TRIPS; trip++) {
                Frame frame = Frames.request(
                    window.section, Math.max(1, window.left() / 1e6), window.windowSize, window.candidates, features
                );
                features = Map.of();
                switch (exchanged(frame, window)) {
                    case Answer.Ranking ranking -> {
                        return ranking;
                    }
                    case Answer.Missing missing -> {
                        reserved.release();
                        features = source.read(missing.hashes(), missing.fields(), reserved);
                    }
                }
            }
        } catch (IOException error) {
            throw new SidecarFailure(Kind.READ, "the features of the window could not be read: " + error);
        } finally {
            reserved.release();
        }
        throw new SidecarFailure(Kind.PROTOCOL, "the sidecar asks for features again that were just sent: is its memory too small?");
    }

    /** Sends a frame and reads the answer; what the circuit breaker has to know is told it here. */
    private Answer exchanged(Frame frame, Window window) {
        try {
            Answer answer = Frames.answer(checked(sent("score", frame, window.deadline, true)), window.candidates.size());
            if (breaker.isOpen()) {
                log.accept("the sidecar answers again", null);
            }
            breaker.succeeded();
            return answer;
        } catch (SidecarRefusal refusal) {
            breaker.succeeded();
            throw refusal;
        } catch (SidecarFailure failure) {
            boolean away = switch (failure.kind()) {
                case UNAVAILABLE, PROTOCOL, UNAUTHORIZED, BUSY -> true;
                case LATE -> window.patient;
                default -> false;
            };
            if (away && breaker.failed()) {
                log.accept("searches keep their first pass for now: " + failure.getMessage(), null);
            }
            throw failure;
        }
    }

    private HttpResponse<byte[]> sent(String name, Frame frame, long deadline, boolean again) {
        HttpRequest.Builder request = HttpRequest.newBuilder(config.endpoint(name))
            .header("content-type", "application/cbor")
            .header("accept", "application/cbor")
            .POST(frame.body());
        if (config.token() != null) {
            request.header("authorization", "Bearer " + config.token());
        }
        stats.roundTrips.increment();
        stats.bytesSent.add(frame.length());
        CompletableFuture<HttpResponse<byte[]>> exchange = http.sendAsync(
            request.build(),
            ignored -> new BoundedBody(MOST_ANSWER_BYTES.get(name))
        );
        try {
            return exchange.get(Math.max(1, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (TimeoutException late) {
            exchange.cancel(true);
            throw new SidecarFailure(Kind.LATE, "the sidecar did not answer in time");
        } catch (InterruptedException stopped) {
            exchange.cancel(true);
            Thread.currentThread().interrupt();
            throw new SidecarFailure(Kind.LATE, "the search was interrupted");
        } catch (ExecutionException | CancellationException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            if (cause instanceof SidecarFailure failure) {
                throw failure;
            }
            if (again && cause instanceof IOException && !(cause instanceof ConnectException)) {
                return sent(name, frame, deadline, false); // a kept connection that the sidecar has closed meanwhile
            }
            throw new SidecarFailure(
                Kind.UNAVAILABLE,
                "the sidecar at [" + config.url() + "] cannot be reached: " + cause.getClass().getSimpleName()
                    + (cause.getMessage() == null ? "" : ": " + cause.getMessage())
            );
        }
    }

    private static byte[] checked(HttpResponse<byte[]> response) {
        int status = response.statusCode();
        if (status == 200) {
            return response.body();
        }
        String[] error = Frames.error(response.body());
        String type = error[0];
        if (type == null) {
            throw new SidecarFailure(Kind.PROTOCOL, "what answers at the sidecar's address is no es-ttc gateway: it says " + status);
        }
        String reason = "the sidecar says: " + error[1];
        if (type.startsWith("ttc_protocol")) {
            throw new SidecarFailure(Kind.PROTOCOL, reason);
        }
        throw switch (status) {
            case 400 -> new SidecarRefusal(error[1]);
            case 401 -> new SidecarFailure(Kind.UNAUTHORIZED, reason);
            case 413 -> new SidecarFailure(Kind.TOO_LARGE, reason);
            case 429 -> new SidecarFailure(Kind.BUSY, reason);
            default -> new SidecarFailure(
                switch (type) {
                    case "ttc_pending_features_exception" -> Kind.NO_FEATURES;
                    case "ttc_deadline_exceeded_exception" -> Kind.LATE;
                    default -> Kind.SIDECAR;
                },
                reason
            );
        };
    }

    @Override
    public void close() {
        http.shutdownNow();
        executor.shutdownNow();
    }

    /**
     * One window on its way.
     *
     * @param deadline by {@link System#nanoTime}
     * @param patient whether it waits at least as long as the node's setting says: only then a late answer tells
     *     something about the sidecar
     */
    private record Window(Section section, int windowSize, List<Candidate> candidates, long deadline, boolean patient) {
        long left() {
            return deadline - System.nanoTime();
        }
    }

    /** Bytes of one window's features; the frame sends them as they were read. */
    private final class Reserved implements FeatureSource.Budget {
        private long taken;

        @Override
        public void take(long more) {
            if (taken + more > config.maxFrameBytes()) {
                throw new SidecarFailure(
                    Kind.TOO_LARGE,
                    "the window's features are more than [ttc.sidecar.max_frame] " + config.maxFrameBytes() + " bytes: "
                        + "ask for a smaller window_size"
                );
            }
            taken += more;
            if (bytes.addAndGet(more) > config.maxBytes()) {
                throw new SidecarFailure(Kind.BUSY, "features of other windows fill [ttc.sidecar.max_memory]");
            }
        }

        void release() {
            bytes.addAndGet(-taken);
            taken = 0;
        }
    }
}

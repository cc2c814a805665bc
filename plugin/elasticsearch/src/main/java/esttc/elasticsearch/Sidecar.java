package esttc.elasticsearch;

import esttc.core.Attempt;
import esttc.core.EncodingQueue;
import esttc.core.SidecarClient;
import esttc.core.SidecarConfig;
import esttc.core.SidecarFailure;
import esttc.core.SidecarRefusal;
import esttc.core.Stats;
import esttc.lucene.ShardRescorer;

import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.elasticsearch.ElasticsearchStatusException;
import org.elasticsearch.client.internal.Client;
import org.elasticsearch.common.util.concurrent.ThreadContext;
import org.elasticsearch.core.TimeValue;
import org.elasticsearch.rest.RestStatus;
import org.elasticsearch.threadpool.ThreadPool;

import java.io.IOException;
import java.util.concurrent.ExecutorService;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** The node's one sidecar, with what the engine lends: response headers and errors. */
final class Sidecar implements AutoCloseable {
    /** Name of the thread pool. */
    static final String EXECUTOR = "ttc";

    private static final Logger LOG = LogManager.getLogger("esttc.sidecar");

    private final SidecarConfig config;
    private final SidecarClient client;
    private final ShardRescorer shards;
    private volatile ThreadPool threads;
    private volatile Client engine;
    private volatile EncodingQueue queue;

    /** Something that asks the sidecar. */
    @FunctionalInterface
    interface Asking<T> {
        T answer() throws IOException;
    }

    Sidecar(SidecarConfig config) {
        this.config = config;
        this.client = new SidecarClient(config, new Stats(), (what, error) -> LOG.warn(what, error));
        this.shards = new ShardRescorer(client, this::tell);
    }

    /** Gives the threads to wait on, whose response headers tell callers what came of their search, and the node's client. */
    void started(ThreadPool pool, Client given) {
        this.threads = pool;
        this.engine = given;
        int most = pool.info(EXECUTOR).getMax();
        this.queue = new EncodingQueue(client, executor(), Math.max(1, most / 2), LOG::warn);
    }

    /** Where the sidecar may be waited for, other than a search's own thread. */
    ExecutorService executor() {
        return threads.executor(EXECUTOR);
    }

    /** Where documents wait to be encoded; it leaves half of the threads to searches. */
    EncodingQueue queue() {
        return queue;
    }

    /** Something that is done later, on another thread, as if it were done in the name of whoever asks for it now. */
    <T> Consumer<T> inThisContext(Consumer<T> later) {
        Supplier<ThreadContext.StoredContext> here = threads.getThreadContext().newRestorableContext(true);
        return value -> {
            ThreadContext.StoredContext before = here.get();
            try {
                later.accept(value);
            } finally {
                before.close();
            }
        };
    }

    /** Asks the engine in the name of whoever's search this is. */
    Client engine() {
        return engine;
    }

    /** How long a search for features is waited for. */
    TimeValue patience() {
        return TimeValue.timeValueMillis((long) config.maxTimeoutMs());
    }

    /** Asks the sidecar. */
    SidecarClient client() {
        return client;
    }

    /** Rescores windows of shards. */
    ShardRescorer shards() {
        return shards;
    }

    /**
     * Gives failures the engine's own shape.
     *
     * @throws ElasticsearchStatusException the search is wrong, or scoring failed and the search says {@code on_error: fail}
     */
    <T> T asked(Asking<T> asking) throws IOException {
        try {
            return asking.answer();
        } catch (SidecarRefusal refusal) {
            throw new ElasticsearchStatusException(refusal.getMessage(), RestStatus.BAD_REQUEST);
        } catch (SidecarFailure failure) {
            throw new ElasticsearchStatusException(failure.getMessage(), RestStatus.SERVICE_UNAVAILABLE);
        }
    }

    @Override
    public void close() {
        client.close();
    }

    /** Tells the caller what came of a window. */
    void tell(Attempt attempt) {
        threads.getThreadContext().addResponseHeader(Attempt.HEADER, attempt.header());
    }
}

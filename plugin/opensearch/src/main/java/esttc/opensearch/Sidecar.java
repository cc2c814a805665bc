package esttc.opensearch;

import esttc.core.Answer;
import esttc.core.Candidate;
import esttc.core.FeatureSource;
import esttc.core.Section;
import esttc.core.SidecarClient;
import esttc.core.SidecarConfig;
import esttc.core.SidecarFailure;
import esttc.core.SidecarRefusal;
import esttc.core.Stats;

import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.opensearch.OpenSearchStatusException;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;

/** The node's one sidecar: scores windows, says with a response header whether it did, and keeps what explains them. */
final class Sidecar implements AutoCloseable {
    /** Header of an answer: {@code true}, or {@code false} with the kind of failure; both where shards differ. */
    static final String HEADER = "X-Ttc-Applied";

    /** Name of the thread pool. */
    static final String EXECUTOR = "ttc";

    private static final Logger LOG = LogManager.getLogger("esttc.sidecar");

    private final SidecarClient client;
    private final Explanations explanations = new Explanations();
    private final SidecarConfig config;
    private volatile ThreadPool threads;
    private volatile Client engine;

    /**
     * What came of a window.
     *
     * @param ranking its order, or null where the first pass stands
     * @param reason why it stands, or null
     */
    record Scored(Answer.Ranking ranking, String reason) {}

    Sidecar(SidecarConfig config) {
        this.config = config;
        this.client = new SidecarClient(config, new Stats(), (what, error) -> LOG.warn(what, error));
    }

    /** Gives the threads to wait on, whose response headers tell callers what came of their search, and the node's client. */
    void started(ThreadPool pool, Client client) {
        this.threads = pool;
        this.engine = client;
    }

    /** Where the sidecar may be waited for, other than a search's own thread. */
    ExecutorService executor() {
        return threads.executor(EXECUTOR);
    }

    /** Asks the engine in the name of whoever's search this is. */
    Client client() {
        return engine;
    }

    /** How long a search for features is waited for. */
    TimeValue patience() {
        return TimeValue.timeValueMillis((long) config.maxTimeoutMs());
    }

    Explanations explanations() {
        return explanations;
    }

    /**
     * Returns a window in its order, or why the first pass stands.
     *
     * @throws OpenSearchStatusException the search is wrong, or scoring failed and the search says {@code on_error: fail}
     */
    Scored score(Section section, int block, List<Candidate> candidates, FeatureSource source) {
        try {
            Answer.Ranking ranking = client.score(section, block, candidates, source);
            told("true");
            return new Scored(ranking, null);
        } catch (SidecarRefusal refusal) {
            throw new OpenSearchStatusException(refusal.getMessage(), RestStatus.BAD_REQUEST);
        } catch (SidecarFailure failure) {
            if (section.failsOnError()) {
                throw new OpenSearchStatusException(failure.getMessage(), RestStatus.SERVICE_UNAVAILABLE);
            }
            told("false; reason=" + failure.kind().key());
            return new Scored(null, failure.kind().key());
        }
    }

    /** What this node has counted. */
    Map<String, Object> stats() {
        Map<String, Object> all = new LinkedHashMap<>(client.stats().asMap());
        all.put("breaker", Map.of("open", client.breaker().isOpen(), "opened", client.breaker().opened()));
        return all;
    }

    @Override
    public void close() {
        client.close();
    }

    private void told(String applied) {
        threads.getThreadContext().addResponseHeader(HEADER, applied);
    }
}

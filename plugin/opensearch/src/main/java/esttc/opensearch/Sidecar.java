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
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.rest.RestStatus;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The node's one sidecar: scores windows, says with a response header whether it did, and keeps what explains them. */
final class Sidecar implements AutoCloseable {
    /** Header of an answer: {@code true}, or {@code false} with the kind of failure; both where shards differ. */
    static final String HEADER = "X-Ttc-Applied";

    private static final Logger LOG = LogManager.getLogger("esttc.sidecar");

    private final SidecarClient client;
    private final Explanations explanations = new Explanations();
    private volatile ThreadContext context;

    Sidecar(SidecarConfig config) {
        this.client = new SidecarClient(config, new Stats(), (what, error) -> LOG.warn(what, error));
    }

    /** Gives the context whose response headers tell callers whether their search was rescored. */
    void mark(ThreadContext threads) {
        this.context = threads;
    }

    Explanations explanations() {
        return explanations;
    }

    /**
     * Returns a window in its order, or nothing where the first pass stands.
     *
     * @throws OpenSearchStatusException the search is wrong, or scoring failed and the search says {@code on_error: fail}
     */
    Optional<Answer.Ranking> score(Section section, int block, List<Candidate> candidates, FeatureSource source) {
        try {
            Answer.Ranking ranking = client.score(section, block, candidates, source);
            told("true");
            return Optional.of(ranking);
        } catch (SidecarRefusal refusal) {
            throw new OpenSearchStatusException(refusal.getMessage(), RestStatus.BAD_REQUEST);
        } catch (SidecarFailure failure) {
            if (section.failsOnError()) {
                throw new OpenSearchStatusException(failure.getMessage(), RestStatus.SERVICE_UNAVAILABLE);
            }
            told("false; reason=" + failure.kind().key());
            return Optional.empty();
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
        ThreadContext threads = context;
        if (threads != null) {
            threads.addResponseHeader(HEADER, applied);
        }
    }
}

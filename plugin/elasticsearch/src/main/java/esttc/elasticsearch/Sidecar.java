package esttc.elasticsearch;

import esttc.core.Attempt;
import esttc.core.SidecarClient;
import esttc.core.SidecarConfig;
import esttc.core.SidecarFailure;
import esttc.core.SidecarRefusal;
import esttc.core.Stats;
import esttc.lucene.ShardRescorer;

import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.Logger;
import org.elasticsearch.ElasticsearchStatusException;
import org.elasticsearch.common.util.concurrent.ThreadContext;
import org.elasticsearch.rest.RestStatus;

import java.io.IOException;

/** The node's one sidecar, with what the engine lends: response headers and errors. */
final class Sidecar implements AutoCloseable {
    private static final Logger LOG = LogManager.getLogger("esttc.sidecar");

    private final SidecarClient client;
    private final ShardRescorer shards;
    private volatile ThreadContext context;

    /** Something that asks the sidecar. */
    @FunctionalInterface
    interface Asking<T> {
        T answer() throws IOException;
    }

    Sidecar(SidecarConfig config) {
        this.client = new SidecarClient(config, new Stats(), (what, error) -> LOG.warn(what, error));
        this.shards = new ShardRescorer(client, this::told);
    }

    /** Gives the context whose response headers tell callers what came of their search. */
    void started(ThreadContext given) {
        this.context = given;
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

    private void told(Attempt attempt) {
        context.addResponseHeader(Attempt.HEADER, attempt.header());
    }
}

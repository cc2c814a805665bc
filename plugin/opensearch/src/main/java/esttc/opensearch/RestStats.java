package esttc.opensearch;

import org.opensearch.core.rest.RestStatus;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.rest.BaseRestHandler;
import org.opensearch.rest.BytesRestResponse;
import org.opensearch.rest.RestRequest;
import org.opensearch.transport.client.node.NodeClient;

import java.util.List;

/** {@code GET /_plugins/_ttc/stats}: what the node that answers has counted. */
final class RestStats extends BaseRestHandler {
    private final Sidecar sidecar;

    RestStats(Sidecar sidecar) {
        this.sidecar = sidecar;
    }

    @Override
    public String getName() {
        return "ttc_stats";
    }

    @Override
    public List<Route> routes() {
        return List.of(new Route(RestRequest.Method.GET, "/_plugins/_ttc/stats"));
    }

    @Override
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
        return channel -> {
            XContentBuilder builder = channel.newBuilder();
            builder.startObject();
            builder.field("node", client.getLocalNodeId());
            builder.field("ttc", sidecar.client().counted());
            builder.endObject();
            channel.sendResponse(new BytesRestResponse(RestStatus.OK, builder));
        };
    }
}

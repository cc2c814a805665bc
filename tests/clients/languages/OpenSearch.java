// Calls of an application with opensearch-java, each answer on a line: URL INDEX

import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.hc.core5.http.HttpHost;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.json.PlainJsonSerializable;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.opensearch._types.OpenSearchException;
import org.opensearch.client.opensearch._types.Refresh;
import org.opensearch.client.opensearch._types.query_dsl.Query;
import org.opensearch.client.opensearch.generic.Requests;
import org.opensearch.client.transport.httpclient5.ApacheHttpClient5TransportBuilder;

public class OpenSearch {
    public static void main(String[] arguments) throws Exception {
        String index = arguments[1];
        Query query = Query.of(q -> q.match(m -> m.field("text").query(v -> v.stringValue("cat"))));
        List<String> texts = List.of("a cat", "a dog", "the cat and the dog");
        HttpHost host = HttpHost.create(arguments[0]);
        try (var transport = ApacheHttpClient5TransportBuilder.builder(host).setCompressionEnabled(true).build()) {
            OpenSearchClient client = new OpenSearchClient(transport);
            show("info", client::info);
            show("create", () -> client.indices().create(c -> c.index(index)));
            show("exists", () -> client.indices().exists(e -> e.index(index)).value());
            show("bulk", () -> client.bulk(b -> {
                for (int i = 0; i < texts.size(); i++) {
                    Map<String, Object> document = Map.of("text", texts.get(i));
                    String id = String.valueOf(i);
                    b.operations(o -> o.index(x -> x.index(index).id(id).document(document)));
                }
                return b.refresh(Refresh.True);
            }));
            show("get", () -> client.get(g -> g.index(index).id("1"), JsonData.class));
            show("missing", () -> client.get(g -> g.index(index + "-none").id("1"), JsonData.class));
            show("count", () -> client.count(c -> c.index(index).query(query)));
            show("search", () -> client.search(s -> s.index(index).query(query), JsonData.class));
            show("section", () -> {
                var body = "{\"query\":{\"match\":{\"text\":\"cat\"}},\"rescore\":{\"ttc\":{\"method\":\"spectral\"}}}";
                var request = Requests.builder().method("POST").endpoint("/" + index + "/_search").json(body).build();
                return client.generic().execute(request).getBody().orElseThrow().bodyAsString();
            });
            show("delete", () -> client.indices().delete(d -> d.index(index)));
        }
    }

    private static void show(String call, Callable<Object> run) throws Exception {
        Object answer;
        try {
            answer = run.call();
        } catch (OpenSearchException error) {
            answer = error.response();
        } catch (Exception error) {
            answer = error;
        }
        String text = answer instanceof PlainJsonSerializable json ? json.toJsonString() : String.valueOf(answer);
        text = text.replaceAll("\"took\":\\d+", "").replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
        System.out.println("{\"call\":\"" + call + "\",\"answer\":\"" + text + "\"}");
    }
}

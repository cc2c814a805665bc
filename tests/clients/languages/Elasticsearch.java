// Calls of an application with elasticsearch-java, each answer on a line: URL INDEX

import co.elastic.clients.elasticsearch.ElasticsearchClient;
import co.elastic.clients.elasticsearch._types.ElasticsearchException;
import co.elastic.clients.elasticsearch._types.Refresh;
import co.elastic.clients.elasticsearch._types.query_dsl.Query;
import co.elastic.clients.transport.rest5_client.Rest5ClientTransport;
import co.elastic.clients.transport.rest5_client.low_level.Request;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

public class Elasticsearch {
    public static void main(String[] arguments) throws Exception {
        String index = arguments[1];
        Query query = Query.of(q -> q.match(m -> m.field("text").query("cat")));
        List<String> texts = List.of("a cat", "a dog", "the cat and the dog");
        try (ElasticsearchClient client = ElasticsearchClient.of(b -> b.host(arguments[0]).useCompression(true))) {
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
            show("get", () -> client.get(g -> g.index(index).id("1"), Map.class));
            show("missing", () -> client.get(g -> g.index(index + "-none").id("1"), Map.class));
            show("count", () -> client.count(c -> c.index(index).query(query)));
            show("search", () -> client.search(s -> s.index(index).query(query), Map.class));
            show("section", () -> {
                Request request = new Request("POST", "/" + index + "/_search");
                String rescore = "{\"ttc\":{\"method\":\"spectral\"}}";
                request.setJsonEntity("{\"query\":{\"match\":{\"text\":\"cat\"}},\"rescore\":" + rescore + "}");
                var response = ((Rest5ClientTransport) client._transport()).restClient().performRequest(request);
                return new String(response.getEntity().getContent().readAllBytes());
            });
            show("delete", () -> client.indices().delete(d -> d.index(index)));
        }
    }

    private static void show(String call, Callable<Object> run) throws Exception {
        String answer;
        try {
            answer = String.valueOf(run.call());
        } catch (ElasticsearchException error) {
            answer = String.valueOf(error.response());
        } catch (Exception error) {
            answer = String.valueOf(error);
        }
        String text = answer.replaceAll("\"took\":\\d+", "").replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
        System.out.println("{\"call\":\"" + call + "\",\"answer\":\"" + text + "\"}");
    }
}

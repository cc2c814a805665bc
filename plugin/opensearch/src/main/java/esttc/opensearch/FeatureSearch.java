package esttc.opensearch;

import esttc.core.FeatureSource;
import esttc.core.HitFeatures;

import org.opensearch.action.search.SearchRequest;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.SearchHit;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.transport.client.Client;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Reads what documents carry for es-ttc, by searches in the caller's name. */
final class FeatureSearch implements HitFeatures.Search {
    private final Client client;
    private final TimeValue most;

    FeatureSearch(Client client, TimeValue most) {
        this.client = client;
        this.most = most;
    }

    /** What hits say of themselves. */
    static List<HitFeatures.Hit> told(SearchHit[] hits) {
        return Arrays.stream(hits)
            .map(hit -> new HitFeatures.Hit(hit.getIndex(), hit.getId(), hit.getScore(), text(hit, HitFeatures.HASH), text(hit, HitFeatures.ENCODER)))
            .toList();
    }

    @Override
    public List<HitFeatures.Found> documents(String index, List<String> ids, List<String> blobs, boolean stored, FeatureSource.Budget budget) {
        SearchSourceBuilder source = new SearchSourceBuilder().query(QueryBuilders.idsQuery().addIds(ids.toArray(String[]::new)))
            .size(ids.size())
            .trackTotalHits(false)
            .fetchSource(false)
            .docValueField(HitFeatures.HASH)
            .docValueField(HitFeatures.ENCODER);
        if (stored && !blobs.isEmpty()) {
            source.storedFields(blobs);
        } else {
            blobs.forEach(source::docValueField);
        }
        SearchRequest request = new SearchRequest(new String[] { index }, source).pipeline("_none");
        List<HitFeatures.Found> found = new ArrayList<>();
        for (SearchHit hit : client.search(request).actionGet(most).getHits().getHits()) {
            found.add(
                new HitFeatures.Found(hit.getId(), text(hit, HitFeatures.HASH), text(hit, HitFeatures.ENCODER), blobs(hit, blobs, budget))
            );
        }
        return found;
    }

    private static Map<String, byte[]> blobs(SearchHit hit, List<String> fields, FeatureSource.Budget budget) {
        Map<String, byte[]> blobs = new HashMap<>();
        for (String name : fields) {
            DocumentField field = hit.field(name);
            Object value = field == null ? null : field.getValue();
            if (value != null) {
                byte[] blob = switch (value) {
                    case BytesReference bytes -> BytesReference.toBytes(bytes);
                    case byte[] bytes -> bytes;
                    case Object text -> Base64.getDecoder().decode(text.toString());
                };
                budget.take(blob.length);
                blobs.put(name, blob);
            }
        }
        return blobs;
    }

    private static String text(SearchHit hit, String name) {
        DocumentField field = hit.field(name);
        return field == null || field.getValue() == null ? null : field.getValue().toString();
    }
}

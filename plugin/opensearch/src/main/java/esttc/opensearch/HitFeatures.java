package esttc.opensearch;

import esttc.core.Candidate;
import esttc.core.FeatureSource;

import org.opensearch.action.search.SearchRequest;
import org.opensearch.common.document.DocumentField;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.core.common.bytes.BytesReference;
import org.opensearch.index.query.QueryBuilders;
import org.opensearch.search.SearchHit;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.transport.client.Client;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What the hits of a search carry for es-ttc, read by searches in the caller's name: on the coordinator are no shards. */
final class HitFeatures implements FeatureSource {
    static final String HASH = "ttc.hash";
    static final String ENCODER = "ttc.encoder";

    private static final String DOC_VALUES_MARK = "-doc_values";
    private static final int AT_ONCE = 50; // documents whose blobs stand in one answer

    private final Client client;
    private final TimeValue most;
    private final SearchHit[] hits;
    private final Map<String, SearchHit> byHash = new HashMap<>();

    HitFeatures(Client client, TimeValue most, SearchHit[] hits) {
        this.client = client;
        this.most = most;
        this.hits = hits;
    }

    /** The hits as candidates; where they do not say their hashes, these are looked up. */
    List<Candidate> candidates() {
        Map<String, List<String>> unknown = new LinkedHashMap<>();
        for (SearchHit hit : hits) {
            if (hit.field(HASH) == null) {
                unknown.computeIfAbsent(hit.getIndex(), index -> new ArrayList<>()).add(hit.getId());
            }
        }
        Map<String, SearchHit> looked = new HashMap<>();
        unknown.forEach((index, ids) -> {
            for (SearchHit found : search(index, ids, List.of(), List.of(HASH, ENCODER))) {
                looked.put(index + "/" + found.getId(), found);
            }
        });
        List<Candidate> candidates = new ArrayList<>(hits.length);
        for (SearchHit hit : hits) {
            SearchHit told = hit.field(HASH) == null ? looked.get(hit.getIndex() + "/" + hit.getId()) : hit;
            String encoder = text(told, ENCODER);
            String hash = encoder == null ? null : text(told, HASH);
            if (hash != null) {
                byHash.putIfAbsent(hash, hit);
            }
            candidates.add(new Candidate(hash, encoder, hit.getScore(), hit.getIndex()));
        }
        return candidates;
    }

    @Override
    public Map<String, Map<String, byte[]>> read(List<String> hashes, List<String> fields, Budget budget) throws IOException {
        Map<String, Map<String, byte[]>> found = new LinkedHashMap<>();
        Map<String, List<String>> wanted = new LinkedHashMap<>();
        for (String hash : hashes) {
            found.put(hash, Map.of());
            SearchHit hit = byHash.get(hash);
            if (hit != null) {
                String place = (hash.endsWith(DOC_VALUES_MARK) ? "v" : "s") + hit.getIndex();
                wanted.computeIfAbsent(place, ignored -> new ArrayList<>()).add(hit.getId());
            }
        }
        for (Map.Entry<String, List<String>> one : wanted.entrySet()) {
            List<String> stored = one.getKey().charAt(0) == 's' ? fields : List.of();
            List<String> docValues = new ArrayList<>(List.of(HASH));
            docValues.addAll(stored.isEmpty() ? fields : List.of());
            List<String> ids = one.getValue();
            for (int start = 0; start < ids.size(); start += AT_ONCE) {
                List<String> some = ids.subList(start, Math.min(ids.size(), start + AT_ONCE));
                for (SearchHit hit : search(one.getKey().substring(1), some, stored, docValues)) {
                    String hash = text(hit, HASH);
                    if (hash != null && found.containsKey(hash)) { // else it has just been changed
                        found.put(hash, blobs(hit, fields, budget));
                    }
                }
            }
        }
        return found;
    }

    private SearchHit[] search(String index, List<String> ids, List<String> stored, List<String> docValues) {
        SearchSourceBuilder source = new SearchSourceBuilder().query(QueryBuilders.idsQuery().addIds(ids.toArray(String[]::new)))
            .size(ids.size())
            .trackTotalHits(false)
            .fetchSource(false);
        docValues.forEach(source::docValueField);
        if (!stored.isEmpty()) {
            source.storedFields(stored);
        }
        SearchRequest request = new SearchRequest(new String[] { index }, source).pipeline("_none");
        return client.search(request).actionGet(most).getHits().getHits();
    }

    private static Map<String, byte[]> blobs(SearchHit hit, List<String> fields, Budget budget) {
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
        DocumentField field = hit == null ? null : hit.field(name);
        return field == null || field.getValue() == null ? null : field.getValue().toString();
    }
}

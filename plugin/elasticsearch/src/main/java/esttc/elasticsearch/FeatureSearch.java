package esttc.elasticsearch;

import esttc.core.FeatureSource;
import esttc.core.HitFeatures;
import esttc.core.TokenBlob;

import org.apache.lucene.search.join.ScoreMode;
import org.elasticsearch.action.search.SearchRequest;
import org.elasticsearch.action.search.SearchResponse;
import org.elasticsearch.client.internal.Client;
import org.elasticsearch.common.bytes.BytesReference;
import org.elasticsearch.common.document.DocumentField;
import org.elasticsearch.core.TimeValue;
import org.elasticsearch.index.query.InnerHitBuilder;
import org.elasticsearch.index.query.QueryBuilder;
import org.elasticsearch.index.query.QueryBuilders;
import org.elasticsearch.script.Script;
import org.elasticsearch.script.ScriptType;
import org.elasticsearch.search.SearchHit;
import org.elasticsearch.search.SearchHits;
import org.elasticsearch.search.builder.SearchSourceBuilder;
import org.elasticsearch.search.fetch.subphase.FetchSourceContext;
import org.elasticsearch.search.sort.FieldSortBuilder;
import org.elasticsearch.search.sort.SortBuilders;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Reads what documents carry for es-ttc, by searches in the caller's name. */
final class FeatureSearch implements HitFeatures.Search {
    private static final String VECTOR = "v";
    private static final String VECTOR_BYTES = "float[] v = doc['" + TokenBlob.VECTOR + "'].vectorValue; byte[] b = new byte[4 * v.length]; "
        + "int at = 0; for (int i = 0; i < v.length; ++i) { int bits = Float.floatToIntBits(v[i]); b[at++] = (byte) bits; "
        + "b[at++] = (byte) (bits >> 8); b[at++] = (byte) (bits >> 16); b[at++] = (byte) (bits >> 24); } return b;";

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
    public List<HitFeatures.Found> documents(String index, List<String> ids, List<String> blobs, HitFeatures.Layout layout, FeatureSource.Budget budget) {
        boolean nested = layout == HitFeatures.Layout.NESTED && blobs.contains(TokenBlob.FIELD);
        QueryBuilder query = QueryBuilders.idsQuery().addIds(ids.toArray(String[]::new));
        SearchSourceBuilder source = new SearchSourceBuilder().query(nested ? withTokens(query) : query)
            .size(ids.size())
            .trackTotalHits(false)
            .fetchSource(false)
            .docValueField(HitFeatures.HASH)
            .docValueField(HitFeatures.ENCODER);
        if (layout == HitFeatures.Layout.NESTED && !blobs.isEmpty()) {
            source.storedFields(blobs.stream().filter(name -> !(nested && name.equals(TokenBlob.FIELD))).toList());
        } else {
            blobs.forEach(source::docValueField);
        }
        SearchResponse response = client.search(new SearchRequest(new String[] { index }, source)).actionGet(most);
        try {
            List<HitFeatures.Found> found = new ArrayList<>();
            for (SearchHit hit : response.getHits().getHits()) {
                found.add(
                    new HitFeatures.Found(hit.getId(), text(hit, HitFeatures.HASH), text(hit, HitFeatures.ENCODER), blobs(hit, blobs, budget))
                );
            }
            return found;
        } finally {
            response.decRef();
        }
    }

    /** Engines give nested vectors in inner hits only, and there by a script. */
    private static QueryBuilder withTokens(QueryBuilder documents) {
        Script vector = new Script(ScriptType.INLINE, "painless", VECTOR_BYTES, Map.of());
        InnerHitBuilder tokens = new InnerHitBuilder(TokenBlob.FIELD).setSize(HitFeatures.MOST_TOKENS)
            .setFetchSourceContext(FetchSourceContext.DO_NOT_FETCH_SOURCE)
            .addSort(SortBuilders.fieldSort(FieldSortBuilder.DOC_FIELD_NAME))
            .setScriptFields(Set.of(new SearchSourceBuilder.ScriptField(VECTOR, vector, false)));
        QueryBuilder nested = QueryBuilders.nestedQuery(TokenBlob.FIELD, QueryBuilders.matchAllQuery(), ScoreMode.None).innerHit(tokens);
        return QueryBuilders.boolQuery().must(documents).should(nested);
    }

    private static byte[] tokens(SearchHit hit) {
        SearchHits inner = hit.getInnerHits() == null ? null : hit.getInnerHits().get(TokenBlob.FIELD);
        if (inner == null) {
            return null;
        }
        TokenBlob blob = new TokenBlob();
        for (SearchHit token : inner.getHits()) {
            blob.add(bytes(token.field(VECTOR).getValue()));
        }
        return blob.bytes();
    }

    private static byte[] bytes(Object value) {
        return switch (value) {
            case BytesReference bytes -> BytesReference.toBytes(bytes);
            case byte[] bytes -> bytes;
            case Object text -> Base64.getDecoder().decode(text.toString());
        };
    }

    private static Map<String, byte[]> blobs(SearchHit hit, List<String> fields, FeatureSource.Budget budget) {
        Map<String, byte[]> blobs = new HashMap<>();
        for (String name : fields) {
            DocumentField field = hit.field(name);
            Object value = field == null ? null : field.getValue();
            byte[] blob = value != null ? bytes(value) : name.equals(TokenBlob.FIELD) ? tokens(hit) : null;
            if (blob != null) {
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

package esttc.lucene;

import esttc.core.Section;

import org.apache.lucene.index.IndexReader;
import org.apache.lucene.search.Explanation;
import org.apache.lucene.search.ScoreDoc;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The last scores, for explanations: a search is explained in its fetch phase, one document at a time, when the window is
 * no longer there. What is kept has a bound; of a search that was rescored long before, the first pass alone is explained.
 */
final class Explanations {
    private static final int MOST = 20_000;

    private final Map<Key, float[]> kept = new LinkedHashMap<>(256, 0.75f, true) {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Key, float[]> eldest) {
            return size() > MOST;
        }
    };

    /** A document of one state of a shard, as one section and one first pass met it. */
    private record Key(Object reader, Section section, int doc, float firstPass) {}

    void keep(IndexReader reader, Section section, ScoreDoc hit, float score, float methodScore) {
        Object state = stateOf(reader);
        if (state != null) {
            synchronized (kept) {
                kept.put(new Key(state, section, hit.doc, hit.score), new float[] { score, methodScore });
            }
        }
    }

    Explanation of(IndexReader reader, Section section, int doc, Explanation firstPass) {
        float[] found;
        synchronized (kept) {
            found = kept.get(new Key(stateOf(reader), section, doc, firstPass.getValue().floatValue()));
        }
        if (found == null) {
            return firstPass;
        }
        String method = "ttc [" + section.method() + "]";
        if (Float.isNaN(found[1])) {
            String why = method + ": no features, kept below the scored documents in first-pass order";
            return Explanation.match(found[0], why, firstPass);
        }
        Explanation own = Explanation.match(found[1], "score of method [" + section.method() + "]");
        Object mode = section.values().getOrDefault("score_mode", "replace");
        return Explanation.match(found[0], method + ", score_mode [" + mode + "], from:", own, firstPass);
    }

    private static Object stateOf(IndexReader reader) {
        IndexReader.CacheHelper helper = reader.getReaderCacheHelper();
        return helper == null ? null : helper.getKey();
    }
}

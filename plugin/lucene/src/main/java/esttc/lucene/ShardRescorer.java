package esttc.lucene;

import esttc.core.Answer;
import esttc.core.Attempt;
import esttc.core.Section;
import esttc.core.SidecarClient;

import org.apache.lucene.index.IndexReader;
import org.apache.lucene.search.Explanation;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TopDocs;

import java.io.IOException;
import java.util.function.Consumer;

/** Puts a shard's window into the sidecar's order; where that cannot be had, the window stays as it is. */
public final class ShardRescorer {
    private final SidecarClient client;
    private final Consumer<Attempt> told;
    private final Explanations explanations = new Explanations();

    /**
     * @param client asks the sidecar
     * @param told hears what came of every window
     */
    public ShardRescorer(SidecarClient client, Consumer<Attempt> told) {
        this.client = client;
        this.told = told;
    }

    /**
     * Rescores a window.
     *
     * @param top what the shard has found, best first
     * @param windowSize ranks of the window: documents after it keep their order
     * @throws esttc.core.SidecarRefusal the search is wrong
     * @throws esttc.core.SidecarFailure scoring failed, and the search says {@code on_error: fail}
     */
    public TopDocs rescore(TopDocs top, IndexReader reader, Section section, int windowSize, String index) throws IOException {
        ScoreDoc[] hits = top.scoreDocs;
        if (hits.length == 0) {
            return top;
        }
        ShardFeatures features = new ShardFeatures(reader, hits);
        Attempt attempt = client.attempt(section, windowSize, features.candidates(index), features);
        told.accept(attempt);
        Answer.Ranking ranking = attempt.ranking();
        if (ranking == null) {
            return top;
        }
        ScoreDoc[] ordered = new ScoreDoc[hits.length];
        for (int place = 0; place < ordered.length; place++) {
            int before = ranking.order()[place];
            ScoreDoc hit = hits[before];
            explanations.keep(reader, section, hit, ranking.scores()[place], ranking.methodScores()[before]);
            ordered[place] = new ScoreDoc(hit.doc, ranking.scores()[place], hit.shardIndex);
        }
        return new TopDocs(top.totalHits, ordered);
    }

    /** Explains the final score of a document, with the explanation of its first pass inside. */
    public Explanation explain(int doc, IndexReader reader, Section section, Explanation firstPass) {
        return explanations.of(reader, section, doc, firstPass);
    }
}

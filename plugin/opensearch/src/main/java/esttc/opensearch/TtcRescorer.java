package esttc.opensearch;

import esttc.core.Answer;
import esttc.core.Candidate;
import esttc.opensearch.TtcRescorerBuilder.TtcRescoreContext;

import org.apache.lucene.search.Explanation;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TopDocs;
import org.opensearch.search.rescore.RescoreContext;
import org.opensearch.search.rescore.Rescorer;

import java.io.IOException;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Puts a shard's window into the sidecar's order; where that cannot be had, the window stays as it is. */
final class TtcRescorer implements Rescorer {
    private final Sidecar sidecar;

    TtcRescorer(Sidecar sidecar) {
        this.sidecar = sidecar;
    }

    @Override
    public TopDocs rescore(TopDocs topDocs, IndexSearcher searcher, RescoreContext rescoreContext) throws IOException {
        TtcRescoreContext context = (TtcRescoreContext) rescoreContext;
        ScoreDoc[] hits = topDocs.scoreDocs;
        if (hits.length == 0) {
            return topDocs;
        }
        ShardFeatures features = new ShardFeatures(searcher.getIndexReader(), hits);
        List<Candidate> candidates = features.candidates(context.index());
        Sidecar.Scored scored = sidecar.score(context.section(), context.getWindowSize(), candidates, features);
        if (scored.ranking() == null) {
            return topDocs;
        }
        Answer.Ranking ranking = scored.ranking();
        ScoreDoc[] ordered = new ScoreDoc[hits.length];
        Set<Integer> rescored = new HashSet<>();
        for (int place = 0; place < ordered.length; place++) {
            int before = ranking.order()[place];
            ScoreDoc hit = hits[before];
            float methodScore = ranking.methodScores()[before];
            sidecar.explanations().keep(searcher.getIndexReader(), context.section(), hit, ranking.scores()[place], methodScore);
            ordered[place] = new ScoreDoc(hit.doc, ranking.scores()[place], hit.shardIndex);
            rescored.add(hit.doc);
        }
        context.setRescoredDocs(rescored);
        return new TopDocs(topDocs.totalHits, ordered);
    }

    @Override
    public Explanation explain(int doc, IndexSearcher searcher, RescoreContext rescoreContext, Explanation firstPass) {
        TtcRescoreContext context = (TtcRescoreContext) rescoreContext;
        return sidecar.explanations().of(searcher.getIndexReader(), context.section(), doc, firstPass);
    }
}

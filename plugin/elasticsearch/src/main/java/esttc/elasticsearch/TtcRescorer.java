package esttc.elasticsearch;

import esttc.elasticsearch.TtcRescorerBuilder.TtcRescoreContext;

import org.apache.lucene.search.Explanation;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.TopDocs;
import org.elasticsearch.search.rescore.RescoreContext;
import org.elasticsearch.search.rescore.Rescorer;

import java.io.IOException;

/** The rescorer, as Elasticsearch calls it. */
final class TtcRescorer implements Rescorer {
    private final Sidecar sidecar;

    TtcRescorer(Sidecar sidecar) {
        this.sidecar = sidecar;
    }

    @Override
    public TopDocs rescore(TopDocs top, IndexSearcher searcher, RescoreContext rescoreContext) throws IOException {
        TtcRescoreContext context = (TtcRescoreContext) rescoreContext;
        return sidecar.asked(
            () -> sidecar.shards()
                .rescore(top, searcher.getIndexReader(), context.section(), context.getWindowSize(), context.index())
        );
    }

    @Override
    public Explanation explain(int doc, IndexSearcher searcher, RescoreContext rescoreContext, Explanation firstPass) {
        TtcRescoreContext context = (TtcRescoreContext) rescoreContext;
        return sidecar.shards().explain(doc, searcher.getIndexReader(), context.section(), firstPass);
    }
}

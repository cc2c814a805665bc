package esttc.elasticsearch;

import org.elasticsearch.action.search.SearchResponse;
import org.elasticsearch.common.collect.Iterators;
import org.elasticsearch.search.SearchHit;
import org.elasticsearch.search.SearchHits;
import org.elasticsearch.search.profile.SearchProfileResults;
import org.elasticsearch.xcontent.ToXContent;

import java.util.Iterator;
import java.util.List;
import java.util.Map;

/**
 * The answer of a search with other hits, and a word at {@code ext.ttc} about how they came about. Hits and aggregations
 * are the first answer's own, which lives for as long as this one.
 */
final class RescoredResponse extends SearchResponse {
    private final SearchResponse first;
    private final Map<String, Object> ext;

    /** Takes over a reference to the first answer. */
    RescoredResponse(SearchResponse first, SearchHit[] hits, float best, Map<String, Object> ext) {
        super(
            SearchHits.unpooled(hits, first.getHits().getTotalHits(), best),
            first.getAggregations(),
            first.getSuggest(),
            first.isTimedOut(),
            first.isTerminatedEarly(),
            first.getProfileResults().isEmpty() ? null : new SearchProfileResults(first.getProfileResults()),
            first.getNumReducePhases(),
            first.getScrollId(),
            first.getTotalShards(),
            first.getSuccessfulShards(),
            first.getSkippedShards(),
            first.getTookInMillis(),
            first.getShardFailures(),
            first.getClusters(),
            first.pointInTimeId(),
            List.of() // the first answer releases what it holds
        );
        this.first = first;
        this.ext = ext;
    }

    @Override
    public boolean decRef() {
        boolean last = super.decRef();
        if (last) {
            first.decRef();
        }
        return last;
    }

    @Override
    public Iterator<? extends ToXContent> toXContentChunked(ToXContent.Params params) {
        return Iterators.concat(
            Iterators.<ToXContent>single((builder, ignored) -> builder.startObject()),
            innerToXContentChunked(params),
            Iterators.<ToXContent>single((builder, ignored) -> builder.endObject())
        );
    }

    @Override
    public Iterator<? extends ToXContent> innerToXContentChunked(ToXContent.Params params) {
        return Iterators.concat(
            super.innerToXContentChunked(params),
            Iterators.<ToXContent>single((builder, ignored) -> builder.field("ext", Map.of("ttc", ext)))
        );
    }
}

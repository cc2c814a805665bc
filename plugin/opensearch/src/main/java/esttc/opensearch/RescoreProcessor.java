package esttc.opensearch;

import esttc.core.Answer;
import esttc.core.Attempt;
import esttc.core.Candidate;
import esttc.core.HitFeatures;
import esttc.core.Page;
import esttc.core.Section;

import org.opensearch.action.search.SearchRequest;
import org.opensearch.action.search.SearchResponse;
import org.opensearch.action.search.SearchResponseSections;
import org.opensearch.core.action.ActionListener;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.search.SearchExtBuilder;
import org.opensearch.search.SearchHit;
import org.opensearch.search.SearchHits;
import org.opensearch.search.aggregations.InternalAggregations;
import org.opensearch.search.internal.InternalSearchResponse;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.Processor;
import org.opensearch.search.pipeline.SearchResponseProcessor;
import org.opensearch.search.profile.SearchProfileShardResults;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * {@code ttc_rescore}: rescores the hits of all shards together, on the node that the search came to. It takes every hit
 * that it is given, and cuts the page where {@code ttc_window} stands before it.
 */
final class RescoreProcessor extends AbstractProcessor implements SearchResponseProcessor {
    static final String TYPE = "ttc_rescore";

    private final Map<String, Object> defaults;
    private final Sidecar sidecar;

    private RescoreProcessor(String tag, String description, boolean ignoreFailure, Map<String, Object> defaults, Sidecar sidecar) {
        super(tag, description, ignoreFailure);
        this.defaults = defaults;
        this.sidecar = sidecar;
    }

    static Processor.Factory<SearchResponseProcessor> factory(Sidecar sidecar) {
        return (factories, tag, description, ignoreFailure, config, context) -> {
            Map<String, Object> section = new LinkedHashMap<>(config);
            config.clear(); // what is left in it would be refused as unknown; the section is checked here
            try {
                Section.of(withText(section, Set.of("any")));
            } catch (IllegalArgumentException error) {
                throw ConfigurationUtils.newConfigurationException(TYPE, tag, null, error.getMessage());
            }
            return new RescoreProcessor(tag, description, ignoreFailure, section, sidecar);
        };
    }

    @Override
    public String getType() {
        return TYPE;
    }

    @Override
    public SearchResponse processResponse(SearchRequest request, SearchResponse response) {
        throw new UnsupportedOperationException("the sidecar is waited for elsewhere");
    }

    @Override
    public void processResponseAsync(
        SearchRequest request,
        SearchResponse response,
        PipelineProcessingContext context,
        ActionListener<SearchResponse> listener
    ) {
        if (response.getHits().getHits().length == 0) {
            listener.onResponse(response);
            return;
        }
        try {
            sidecar.executor().execute(() -> ActionListener.completeWith(listener, () -> rescored(request, response, context)));
        } catch (RuntimeException rejected) { // too many wait: the first pass, cut and marked
            ActionListener.completeWith(listener, () -> firstPass(response, pageOf(context, response), null, "busy"));
        }
    }

    private SearchResponse rescored(SearchRequest request, SearchResponse response, PipelineProcessingContext context)
        throws IOException {
        SearchHit[] hits = response.getHits().getHits();
        if (Arrays.stream(hits).anyMatch(hit -> Float.isNaN(hit.getScore()))) {
            throw new IllegalArgumentException("Cannot use [sort] option in conjunction with [" + TYPE + "].");
        }
        Section section = section(request);
        Page page = pageOf(context, response);
        FeatureSearch search = new FeatureSearch(sidecar.engine(), sidecar.patience());
        HitFeatures features = new HitFeatures(search, FeatureSearch.told(hits), WindowProcessor.pageOf(context) != null);
        List<Candidate> candidates = features.candidates();
        Attempt attempt = sidecar.asked(() -> sidecar.client().attempt(section, page.windowSize(), candidates, features));
        Answer.Ranking ranking = attempt.ranking();
        if (ranking == null) {
            return firstPass(response, page, section, attempt.failure().kind().key());
        }
        SearchHit[] ordered = new SearchHit[hits.length];
        for (int place = 0; place < ordered.length; place++) {
            ordered[place] = hits[ranking.order()[place]];
            ordered[place].score(ranking.scores()[place]);
        }
        return answer(response, ordered, ranking.scores()[0], page, summary(section, page.windowOf(hits), null));
    }

    private static SearchResponse firstPass(SearchResponse response, Page page, Section section, String reason) {
        SearchHit[] hits = response.getHits().getHits();
        return answer(response, hits, response.getHits().getMaxScore(), page, summary(section, page.windowOf(hits), reason));
    }

    private static SearchResponse answer(SearchResponse response, SearchHit[] ordered, float best, Page page, TtcExt summary) {
        SearchHit[] shown = page.of(ordered);
        for (SearchHit hit : shown) {
            page.hidden().forEach(hit::removeDocumentField);
        }
        SearchHits before = response.getHits();
        SearchHits hits = new SearchHits(
            shown,
            before.getTotalHits(),
            best,
            before.getSortFields(),
            before.getCollapseField(),
            before.getCollapseValues()
        );
        SearchResponseSections sections = response.getInternalResponse();
        List<SearchExtBuilder> exts = new ArrayList<>(sections.getSearchExtBuilders());
        exts.add(summary);
        Map<String, org.opensearch.search.profile.ProfileShardResult> profile = sections.profile();
        InternalSearchResponse changed = new InternalSearchResponse(
            hits,
            (InternalAggregations) sections.aggregations(),
            sections.suggest(),
            profile.isEmpty() ? null : new SearchProfileShardResults(profile),
            sections.timedOut(),
            sections.terminatedEarly(),
            sections.getNumReducePhases(),
            exts,
            sections.getProcessorResult()
        );
        return new SearchResponse(
            changed,
            response.getScrollId(),
            response.getTotalShards(),
            response.getSuccessfulShards(),
            response.getSkippedShards(),
            response.getTook().millis(),
            response.getPhaseTook(),
            response.getShardFailures(),
            response.getClusters(),
            response.pointInTimeId()
        );
    }

    private static TtcExt summary(Section section, int window, String reason) {
        Map<String, Object> values = new LinkedHashMap<>();
        if (section != null) {
            values.put("method", section.method());
        }
        values.put("applied", reason == null);
        values.put("window", window);
        if (section != null && section.windowOnly()) {
            values.put("window_only", true);
        }
        if (reason != null) {
            values.put("reason", reason);
        }
        return new TtcExt(values);
    }

    /** The section: the pipeline's, then what the request says at {@code ext.ttc}; the text is the query's where both are silent. */
    private Section section(SearchRequest request) {
        Map<String, Object> values = new LinkedHashMap<>(defaults);
        if (request.source() != null) {
            for (SearchExtBuilder ext : request.source().ext()) {
                if (ext instanceof TtcExt own) {
                    if (own.values().containsKey("query_texts")) {
                        values.remove("query_text");
                    } else if (own.values().containsKey("query_text")) {
                        values.remove("query_texts");
                    }
                    values.putAll(own.values());
                }
            }
        }
        Set<String> texts = request.source() == null ? Set.of() : QueryTexts.of(request.source().query());
        return Section.of(withText(values, texts));
    }

    private static Map<String, Object> withText(Map<String, Object> values, Set<String> texts) {
        if (values.get("query_text") != null || values.get("query_texts") != null || texts.isEmpty()) {
            return values;
        }
        if (texts.size() > 1) {
            throw new IllegalArgumentException(
                "[ttc.query_text] is missing and the query holds " + texts.size() + " different texts: give the text in [ext.ttc.query_text]"
            );
        }
        Map<String, Object> with = new LinkedHashMap<>(values);
        with.put("query_text", texts.iterator().next());
        return with;
    }

    private static Page pageOf(PipelineProcessingContext context, SearchResponse response) {
        int all = response.getHits().getHits().length;
        Page page = WindowProcessor.pageOf(context);
        return page == null ? new Page(0, all, all, List.of()) : page;
    }
}

package esttc.elasticsearch;

import esttc.core.Answer;
import esttc.core.Attempt;
import esttc.core.Candidate;
import esttc.core.HitFeatures;
import esttc.core.Page;
import esttc.core.Section;
import esttc.core.SidecarFailure;

import org.elasticsearch.action.ActionListener;
import org.elasticsearch.action.ActionRequest;
import org.elasticsearch.action.ActionResponse;
import org.elasticsearch.action.search.SearchRequest;
import org.elasticsearch.action.search.SearchResponse;
import org.elasticsearch.action.search.TransportSearchAction;
import org.elasticsearch.action.support.ActionFilterChain;
import org.elasticsearch.action.support.MappedActionFilter;
import org.elasticsearch.search.SearchExtBuilder;
import org.elasticsearch.search.SearchHit;
import org.elasticsearch.search.builder.SearchSourceBuilder;
import org.elasticsearch.search.fetch.subphase.FieldAndFormat;
import org.elasticsearch.tasks.Task;

import java.io.IOException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Rescores the hits of all shards together, on the node that the search came to, where the search asks for it at
 * {@code ext.ttc}: the whole window is found, scored, and the page cut from it. Other searches pass through untouched.
 */
final class RescoreFilter implements MappedActionFilter {
    private final Sidecar sidecar;

    RescoreFilter(Sidecar sidecar) {
        this.sidecar = sidecar;
    }

    @Override
    public String actionName() {
        return TransportSearchAction.NAME;
    }

    @Override
    public <Request extends ActionRequest, Response extends ActionResponse> void apply(
        Task task,
        String action,
        Request request,
        ActionListener<Response> listener,
        ActionFilterChain<Request, Response> chain
    ) {
        TtcExt asked = request instanceof SearchRequest search ? asked(search) : null;
        if (asked == null) {
            chain.proceed(task, action, request, listener);
            return;
        }
        SearchRequest search = (SearchRequest) request;
        Page page;
        try {
            page = widened(search, asked);
        } catch (IllegalArgumentException error) {
            listener.onFailure(error);
            return;
        }
        if (page.size() == 0) {
            chain.proceed(task, action, request, listener);
            return;
        }
        @SuppressWarnings("unchecked") // this is the action whose answers they are
        ActionListener<Response> rescoring = (ActionListener<Response>) rescoring(asked.section(), page, (ActionListener<SearchResponse>) listener);
        chain.proceed(task, action, request, rescoring);
    }

    private static TtcExt asked(SearchRequest request) {
        if (request.source() != null) {
            for (SearchExtBuilder ext : request.source().ext()) {
                if (ext instanceof TtcExt own) {
                    return own;
                }
            }
        }
        return null;
    }

    /** Makes the request one for the whole window, without a word of ours: a shard need not know of it. */
    private static Page widened(SearchRequest request, TtcExt asked) {
        if (request.scroll() != null) {
            throw new IllegalArgumentException("Cannot use [scroll] option in conjunction with [ext.ttc].");
        }
        SearchSourceBuilder source = request.source().shallowCopy();
        source.ext(source.ext().stream().filter(ext -> ext != asked).toList());
        List<FieldAndFormat> shown = source.docValueFields() == null ? List.of() : source.docValueFields();
        Page page = Page.of(source.from(), source.size(), asked.window(), shown.stream().map(one -> one.field).toList());
        if (page.size() > 0) {
            page.hidden().forEach(source::docValueField);
            source.from(0).size((int) page.end());
        }
        request.source(source);
        return page;
    }

    private ActionListener<SearchResponse> rescoring(Section section, Page page, ActionListener<SearchResponse> listener) {
        Consumer<SearchResponse> rescore = sidecar.inThisContext(first -> answer(section, page, first, listener));
        return listener.delegateFailure((ignored, first) -> {
            if (first.getHits().getHits().length == 0) {
                listener.onResponse(first);
                return;
            }
            first.mustIncRef();
            try {
                sidecar.executor().execute(() -> rescore.accept(first));
            } catch (RuntimeException rejected) { // too many wait: the first pass, cut and marked
                SidecarFailure busy = new SidecarFailure(SidecarFailure.Kind.BUSY, "too many searches wait for the sidecar already");
                ActionListener.respondAndRelease(listener, firstPass(section, page, first, new Attempt(null, busy)));
            }
        });
    }

    /** Answers, and lets the first answer go. */
    private void answer(Section section, Page page, SearchResponse first, ActionListener<SearchResponse> listener) {
        SearchResponse answer;
        try {
            answer = rescored(section, page, first);
        } catch (IOException | RuntimeException error) {
            first.decRef();
            listener.onFailure(error);
            return;
        }
        ActionListener.respondAndRelease(listener, answer);
    }

    private SearchResponse rescored(Section section, Page page, SearchResponse first) throws IOException {
        SearchHit[] hits = first.getHits().getHits();
        if (Arrays.stream(hits).anyMatch(hit -> Float.isNaN(hit.getScore()))) {
            throw new IllegalArgumentException("Cannot use [sort] option in conjunction with [ext.ttc].");
        }
        FeatureSearch search = new FeatureSearch(sidecar.engine(), sidecar.patience());
        HitFeatures features = new HitFeatures(search, FeatureSearch.told(hits), true);
        List<Candidate> candidates = features.candidates();
        Attempt attempt = sidecar.asked(() -> sidecar.client().attempt(section, page.windowSize(), candidates, features));
        Answer.Ranking ranking = attempt.ranking();
        if (ranking == null) {
            return firstPass(section, page, first, attempt);
        }
        SearchHit[] ordered = new SearchHit[hits.length];
        for (int place = 0; place < ordered.length; place++) {
            ordered[place] = hits[ranking.order()[place]];
            ordered[place].score(ranking.scores()[place]);
        }
        return shown(section, page, first, ordered, ranking.scores()[0], attempt);
    }

    private SearchResponse firstPass(Section section, Page page, SearchResponse first, Attempt attempt) {
        return shown(section, page, first, first.getHits().getHits(), first.getHits().getMaxScore(), attempt);
    }

    private SearchResponse shown(Section section, Page page, SearchResponse first, SearchHit[] ordered, float best, Attempt attempt) {
        SearchHit[] shown = page.of(ordered);
        for (SearchHit hit : shown) {
            page.hidden().forEach(hit::removeDocumentField);
        }
        Map<String, Object> ext = new LinkedHashMap<>();
        ext.put("method", section.method());
        ext.put("applied", attempt.failure() == null);
        ext.put("window", page.windowOf(ordered));
        if (section.windowOnly()) {
            ext.put("window_only", true);
        }
        if (attempt.failure() != null) {
            ext.put("reason", attempt.failure().kind().key());
        }
        sidecar.tell(attempt);
        return new RescoredResponse(first, shown, best, ext);
    }
}

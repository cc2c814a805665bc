package esttc.opensearch;

import esttc.core.Names;

import org.opensearch.action.search.SearchRequest;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.Processor;
import org.opensearch.search.pipeline.SearchRequestProcessor;

import java.util.ArrayList;
import java.util.List;

/**
 * {@code ttc_window}: has the engine find the whole window, and {@code ttc_rescore} cut the page from it afterwards. A
 * page deeper than the window is rescored in blocks of the window's size, so pages repeat no document.
 */
final class WindowProcessor extends AbstractProcessor implements SearchRequestProcessor {
    static final String TYPE = "ttc_window";
    static final int DEFAULT_WINDOW = 100;
    static final int MOST = 10_000;

    private static final String PAGE = "ttc.page";
    private static final int DEFAULT_SIZE = 10;

    private final int window;

    /**
     * What the caller asked for.
     *
     * @param from the page's first rank
     * @param size its ranks
     * @param block ranks of a block
     * @param hidden fields that only we have asked for
     */
    record Page(int from, int size, int block, List<String> hidden) {}

    private WindowProcessor(String tag, String description, boolean ignoreFailure, int window) {
        super(tag, description, ignoreFailure);
        this.window = window;
    }

    static Processor.Factory<SearchRequestProcessor> factory() {
        return (factories, tag, description, ignoreFailure, config, context) -> {
            int window = ConfigurationUtils.readIntProperty(TYPE, tag, config, "window_size", DEFAULT_WINDOW);
            if (window < 1 || window > MOST) {
                String problem = "must be from 1 to " + MOST + ", got " + Names.shown(window);
                throw ConfigurationUtils.newConfigurationException(TYPE, tag, "window_size", problem);
            }
            return new WindowProcessor(tag, description, ignoreFailure, window);
        };
    }

    /** The page of a search that went through here, or null. */
    static Page pageOf(PipelineProcessingContext context) {
        return (Page) context.getAttribute(PAGE);
    }

    @Override
    public String getType() {
        return TYPE;
    }

    @Override
    public SearchRequest processRequest(SearchRequest request) {
        throw new UnsupportedOperationException("a pipeline gives its context");
    }

    @Override
    public SearchRequest processRequest(SearchRequest request, PipelineProcessingContext context) {
        SearchSourceBuilder source = request.source() == null ? new SearchSourceBuilder() : request.source();
        int from = Math.max(0, source.from());
        int size = source.size() < 0 ? DEFAULT_SIZE : source.size();
        if (size == 0) {
            return request;
        }
        int block = Math.max(window, size);
        long end = Math.ceilDiv((long) from + size, block) * (long) block;
        if (end > MOST) {
            throw new IllegalArgumentException(
                "[from] + [size] " + ((long) from + size) + " needs a window of more than [" + MOST + "] documents: ask for a page less deep"
            );
        }
        List<String> hidden = new ArrayList<>(List.of(HitFeatures.HASH, HitFeatures.ENCODER));
        List<FieldAndFormat> asked = source.docValueFields() == null ? List.of() : source.docValueFields();
        asked.forEach(one -> hidden.remove(one.field));
        hidden.forEach(source::docValueField);
        source.from(0).size((int) end);
        request.source(source);
        context.setAttribute(PAGE, new Page(from, size, block, hidden));
        return request;
    }
}

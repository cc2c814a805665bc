package esttc.opensearch;

import esttc.core.Names;
import esttc.core.Page;

import org.opensearch.action.search.SearchRequest;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.search.builder.SearchSourceBuilder;
import org.opensearch.search.fetch.subphase.FieldAndFormat;
import org.opensearch.search.pipeline.AbstractProcessor;
import org.opensearch.search.pipeline.PipelineProcessingContext;
import org.opensearch.search.pipeline.Processor;
import org.opensearch.search.pipeline.SearchRequestProcessor;

import java.util.List;

/** {@code ttc_window}: has the engine find the whole window, and {@code ttc_rescore} cut the page from it afterwards. */
final class WindowProcessor extends AbstractProcessor implements SearchRequestProcessor {
    static final String TYPE = "ttc_window";

    private static final String PAGE = "ttc.page";

    private final int window;

    private WindowProcessor(String tag, String description, boolean ignoreFailure, int window) {
        super(tag, description, ignoreFailure);
        this.window = window;
    }

    static Processor.Factory<SearchRequestProcessor> factory() {
        return (factories, tag, description, ignoreFailure, config, context) -> {
            int window = ConfigurationUtils.readIntProperty(TYPE, tag, config, "window_size", Page.DEFAULT_WINDOW);
            if (window < 1 || window > Page.MOST) {
                String problem = "must be from 1 to " + Page.MOST + ", got " + Names.shown(window);
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
        if (source.size() == 0) {
            return request;
        }
        List<FieldAndFormat> asked = source.docValueFields() == null ? List.of() : source.docValueFields();
        Page page = Page.of(source.from(), source.size(), window, asked.stream().map(one -> one.field).toList());
        page.hidden().forEach(source::docValueField);
        source.from(0).size((int) page.end());
        request.source(source);
        context.setAttribute(PAGE, page);
        return request;
    }
}

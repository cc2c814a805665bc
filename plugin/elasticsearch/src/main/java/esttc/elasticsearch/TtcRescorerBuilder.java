package esttc.elasticsearch;

import esttc.core.Section;

import org.elasticsearch.TransportVersion;
import org.elasticsearch.common.ParsingException;
import org.elasticsearch.common.io.stream.StreamInput;
import org.elasticsearch.common.io.stream.StreamOutput;
import org.elasticsearch.xcontent.XContentBuilder;
import org.elasticsearch.xcontent.XContentParser;
import org.elasticsearch.index.query.QueryRewriteContext;
import org.elasticsearch.index.query.SearchExecutionContext;
import org.elasticsearch.search.rescore.RescoreContext;
import org.elasticsearch.search.rescore.RescorerBuilder;

import java.io.IOException;
import java.util.Map;
import java.util.Objects;

/** The {@code ttc} rescorer of a search: parsed and checked where the search comes in, streamed to the shards. */
final class TtcRescorerBuilder extends RescorerBuilder<TtcRescorerBuilder> {
    private static final int DEFAULT_WINDOW = 100;

    private final Section section;
    private final Sidecar sidecar;

    TtcRescorerBuilder(Section section, Sidecar sidecar) {
        this.section = section;
        this.sidecar = sidecar;
    }

    TtcRescorerBuilder(StreamInput in, Sidecar sidecar) throws IOException {
        super(in);
        this.section = Section.of(in.readGenericMap());
        this.sidecar = sidecar;
    }

    static TtcRescorerBuilder fromXContent(XContentParser parser, Sidecar sidecar) throws IOException {
        Map<String, Object> values = parser.mapOrdered();
        try {
            return new TtcRescorerBuilder(Section.of(values), sidecar);
        } catch (IllegalArgumentException error) {
            throw new ParsingException(parser.getTokenLocation(), error.getMessage());
        }
    }

    @Override
    public String getWriteableName() {
        return Section.NAME;
    }

    @Override
    public TransportVersion getMinimalSupportedVersion() {
        return TransportVersion.zero();
    }

    @Override
    protected void doWriteTo(StreamOutput out) throws IOException {
        out.writeGenericMap(section.values());
    }

    @Override
    protected void doXContent(XContentBuilder builder, Params params) throws IOException {
        builder.field(Section.NAME, section.values());
    }

    @Override
    public TtcRescorerBuilder rewrite(QueryRewriteContext context) {
        return this;
    }

    @Override
    protected RescoreContext innerBuildContext(int window, SearchExecutionContext context) {
        context.disableCache(); // a first pass that stands in for a rescored window must not be served again
        int asked = windowSize == null ? DEFAULT_WINDOW : window;
        return new TtcRescoreContext(asked, new TtcRescorer(sidecar), section, context.index().getName());
    }

    @Override
    public boolean equals(Object other) {
        return super.equals(other) && other instanceof TtcRescorerBuilder that && section.equals(that.section);
    }

    @Override
    public int hashCode() {
        return Objects.hash(super.hashCode(), section);
    }

    /** One shard's part of a search. */
    static final class TtcRescoreContext extends RescoreContext {
        private final Section section;
        private final String index;

        TtcRescoreContext(int window, TtcRescorer rescorer, Section section, String index) {
            super(window, rescorer);
            this.section = section;
            this.index = index;
        }

        Section section() {
            return section;
        }

        String index() {
            return index;
        }
    }
}

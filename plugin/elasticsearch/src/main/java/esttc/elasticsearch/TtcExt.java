package esttc.elasticsearch;

import esttc.core.Names;
import esttc.core.Page;
import esttc.core.Section;

import org.elasticsearch.TransportVersion;
import org.elasticsearch.common.ParsingException;
import org.elasticsearch.common.io.stream.StreamInput;
import org.elasticsearch.common.io.stream.StreamOutput;
import org.elasticsearch.search.SearchExtBuilder;
import org.elasticsearch.xcontent.XContentBuilder;
import org.elasticsearch.xcontent.XContentParser;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/** What stands at {@code ext.ttc} of a request: the section, and the window of a rescore over all shards. */
final class TtcExt extends SearchExtBuilder {
    private static final String WINDOW = "window_size";

    private final Section section;
    private final int window;

    private TtcExt(Section section, int window) {
        this.section = section;
        this.window = window;
    }

    TtcExt(StreamInput in) throws IOException {
        this(Section.of(in.readGenericMap()), in.readVInt());
    }

    static TtcExt fromXContent(XContentParser parser) throws IOException {
        Map<String, Object> values = new LinkedHashMap<>(parser.mapOrdered());
        Object window = values.containsKey(WINDOW) ? values.remove(WINDOW) : Page.DEFAULT_WINDOW;
        if (!(window instanceof Integer ranks) || ranks < 1 || ranks > Page.MOST) {
            String problem = "[ext.ttc.window_size] must be from 1 to " + Page.MOST + ", got " + Names.shown(window);
            throw new ParsingException(parser.getTokenLocation(), problem);
        }
        try {
            return new TtcExt(Section.of(values), ranks);
        } catch (IllegalArgumentException error) {
            throw new ParsingException(parser.getTokenLocation(), error.getMessage());
        }
    }

    Section section() {
        return section;
    }

    /** Ranks of the window. */
    int window() {
        return window;
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
    public void writeTo(StreamOutput out) throws IOException {
        out.writeGenericMap(section.values());
        out.writeVInt(window);
    }

    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        Map<String, Object> values = new LinkedHashMap<>(section.values());
        values.put(WINDOW, window);
        return builder.field(Section.NAME, values);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof TtcExt that && section.equals(that.section) && window == that.window;
    }

    @Override
    public int hashCode() {
        return Objects.hash(section, window);
    }
}

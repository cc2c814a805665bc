package esttc.opensearch;

import esttc.core.Section;

import org.opensearch.core.common.io.stream.StreamInput;
import org.opensearch.core.common.io.stream.StreamOutput;
import org.opensearch.core.xcontent.XContentBuilder;
import org.opensearch.search.SearchExtBuilder;

import java.io.IOException;
import java.util.Map;
import java.util.Objects;

/** What stands at {@code ext.ttc}: of a request, keys of the section; of an answer, what came of it. */
final class TtcExt extends SearchExtBuilder {
    private final Map<String, Object> values;

    TtcExt(Map<String, Object> values) {
        this.values = values;
    }

    TtcExt(StreamInput in) throws IOException {
        this(in.readMap());
    }

    Map<String, Object> values() {
        return values;
    }

    @Override
    public String getWriteableName() {
        return Section.NAME;
    }

    @Override
    public void writeTo(StreamOutput out) throws IOException {
        out.writeMap(values);
    }

    @Override
    public XContentBuilder toXContent(XContentBuilder builder, Params params) throws IOException {
        return builder.field(Section.NAME, values);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof TtcExt that && values.equals(that.values);
    }

    @Override
    public int hashCode() {
        return Objects.hash(Section.NAME, values);
    }
}

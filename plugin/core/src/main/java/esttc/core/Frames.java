package esttc.core;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.dataformat.cbor.CBORFactory;
import com.fasterxml.jackson.dataformat.cbor.CBORGenerator;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.math.BigInteger;
import java.time.temporal.TemporalAccessor;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The frames of the sidecar protocol: docs/reference/sidecar-protocol.md says what stands in them. */
public final class Frames {
    /** The version of the protocol that is spoken here. */
    public static final int VERSION = 1;

    private static final double LONGEST_MS = 3_600_000; // a budget of more is told as this
    private static final int DEEPEST = 100;
    private static final int A_CANDIDATE = 400;
    private static final int A_DOCUMENT = 2000;
    private static final CBORFactory CBOR = CBORFactory.builder()
        .streamReadConstraints(StreamReadConstraints.builder().maxNestingDepth(DEEPEST).build())
        .build();

    private Frames() {}

    /** Writes a request. */
    public static Frame request(
        Section section,
        double deadlineMs,
        int windowSize,
        List<Candidate> candidates,
        Map<String, Map<String, byte[]>> features
    ) {
        ByteArrayOutputStream sink = new ByteArrayOutputStream(A_CANDIDATE * candidates.size());
        sink.writeBytes(Frame.mapOf(features.isEmpty() ? 5 : 6));
        try (CBORGenerator out = CBOR.createGenerator(sink)) { // keys and values one after the other, after the map's head
            out.writeString("version");
            out.writeNumber(VERSION);
            out.writeString("ttc");
            write(out, section.values());
            out.writeString("deadline_ms");
            out.writeNumber(Math.min(deadlineMs, LONGEST_MS));
            out.writeString("window_size");
            out.writeNumber(windowSize);
            out.writeString("documents");
            out.writeStartArray(null, candidates.size());
            for (Candidate candidate : candidates) {
                out.writeStartObject(null, 4);
                out.writeStringField("hash", candidate.hash());
                out.writeStringField("encoder", candidate.encoder());
                out.writeNumberField("score", candidate.score());
                out.writeStringField("index", candidate.index());
                out.writeEndObject();
            }
            out.writeEndArray();
            if (!features.isEmpty()) {
                out.writeString("features");
            }
        } catch (IOException error) {
            throw new IllegalArgumentException("[ttc] cannot be sent: " + error.getMessage(), error);
        }
        Frame frame = new Frame(sink.toByteArray());
        if (!features.isEmpty()) {
            frame.add(features);
        }
        return frame;
    }

    /** Writes a request for the features of documents. */
    public static Frame documents(double deadlineMs, String index, List<Map<String, Object>> documents) {
        ByteArrayOutputStream sink = new ByteArrayOutputStream(A_DOCUMENT * documents.size());
        try (CBORGenerator out = CBOR.createGenerator(sink)) {
            out.writeStartObject(null, 4);
            out.writeNumberField("version", VERSION);
            out.writeNumberField("deadline_ms", Math.min(deadlineMs, LONGEST_MS));
            out.writeStringField("index", index);
            out.writeFieldName("documents");
            write(out, documents);
            out.writeEndObject();
        } catch (IOException error) {
            throw new IllegalArgumentException("the documents cannot be sent: " + error.getMessage(), error);
        }
        return new Frame(sink.toByteArray());
    }

    /**
     * Reads the answer to it: for each document a map with what belongs below {@code ttc}, or with an {@code error}.
     *
     * @throws SidecarFailure it breaks the protocol
     */
    public static List<Map<String, Object>> encoded(byte[] raw, int documents) {
        Map<String, Object> frame = versioned(raw);
        List<Map<String, Object>> found = new ArrayList<>();
        for (Object one : listOf(frame, "documents", documents)) {
            if (!(one instanceof Map<?, ?> map) || !(map.get("ttc") instanceof Map<?, ?> || map.get("error") instanceof String)) {
                throw broken("[documents] holds what is neither features nor an error");
            }
            @SuppressWarnings("unchecked")
            Map<String, Object> known = (Map<String, Object>) map;
            found.add(known);
        }
        return found;
    }

    /**
     * Reads an answer to a request of some candidates.
     *
     * @throws SidecarFailure it breaks the protocol
     */
    public static Answer answer(byte[] raw, int candidates) {
        Map<String, Object> frame = versioned(raw);
        if (frame.containsKey("missing")) {
            return new Answer.Missing(strings(frame, "missing", candidates), strings(frame, "fields", 100));
        }
        return new Answer.Ranking(
            permutation(frame, candidates),
            floats(frame, "final", candidates, false),
            floats(frame, "scores", candidates, true)
        );
    }

    /** Reads the type and the reason of an error, or nulls where the body is no such thing. */
    public static String[] error(byte[] raw) {
        try {
            if (map(raw).get("error") instanceof Map<?, ?> error
                && error.get("type") instanceof String type
                && error.get("reason") instanceof String reason) {
                return new String[] { type, reason };
            }
        } catch (SidecarFailure notOurs) {
            return new String[2];
        }
        return new String[2];
    }

    private static Map<String, Object> versioned(byte[] raw) {
        Map<String, Object> frame = map(raw);
        if (!(frame.get("version") instanceof Number version) || version.doubleValue() != VERSION) {
            throw broken("it is of version [" + Names.shown(frame.get("version")) + "], and this plugin speaks [" + VERSION + "]");
        }
        return frame;
    }

    private static Map<String, Object> map(byte[] raw) {
        try (JsonParser in = CBOR.createParser(raw)) {
            if (in.nextToken() != JsonToken.START_OBJECT) {
                throw broken("it is no map");
            }
            @SuppressWarnings("unchecked")
            Map<String, Object> frame = (Map<String, Object>) read(in);
            if (in.nextToken() != null) {
                throw broken("it goes on after its end");
            }
            return frame;
        } catch (IOException error) {
            throw broken("it is no CBOR, or ends too early");
        }
    }

    private static Object read(JsonParser in) throws IOException {
        switch (in.currentToken()) {
            case START_OBJECT:
                Map<String, Object> map = new LinkedHashMap<>();
                while (in.nextToken() == JsonToken.FIELD_NAME) {
                    String name = in.currentName();
                    in.nextToken();
                    map.put(name, read(in));
                }
                return map;
            case START_ARRAY:
                List<Object> list = new ArrayList<>();
                while (in.nextToken() != JsonToken.END_ARRAY) {
                    list.add(read(in));
                }
                return list;
            case VALUE_STRING:
                return in.getText();
            case VALUE_NUMBER_INT:
            case VALUE_NUMBER_FLOAT:
                return in.getNumberValue();
            case VALUE_TRUE:
            case VALUE_FALSE:
                return in.getBooleanValue();
            case VALUE_NULL:
                return null;
            case VALUE_EMBEDDED_OBJECT:
                return in.getBinaryValue();
            default:
                throw broken("it holds a value of an unknown kind");
        }
    }

    private static void write(CBORGenerator out, Object value) throws IOException {
        switch (value) {
            case null -> out.writeNull();
            case Map<?, ?> map -> {
                out.writeStartObject(null, map.size());
                for (Map.Entry<?, ?> entry : map.entrySet()) {
                    out.writeFieldName(String.valueOf(entry.getKey()));
                    write(out, entry.getValue());
                }
                out.writeEndObject();
            }
            case List<?> list -> {
                out.writeStartArray(null, list.size());
                for (Object one : list) {
                    write(out, one);
                }
                out.writeEndArray();
            }
            case String text -> out.writeString(text);
            case Boolean flag -> out.writeBoolean(flag);
            case Integer number -> out.writeNumber(number);
            case Long number -> out.writeNumber(number);
            case BigInteger number -> out.writeNumber(number);
            case Number number -> out.writeNumber(number.doubleValue());
            case byte[] bytes -> out.writeBinary(bytes);
            case TemporalAccessor time -> out.writeString(time.toString());
            default -> throw new IllegalArgumentException("a value of an unknown kind cannot be sent: " + value.getClass().getSimpleName());
        }
    }

    private static List<String> strings(Map<String, Object> frame, String key, int most) {
        if (!(frame.get(key) instanceof List<?> list)
            || list.isEmpty()
            || list.size() > most
            || !list.stream().allMatch(String.class::isInstance)) {
            throw broken("[" + key + "] must be a list of names");
        }
        return list.stream().map(String.class::cast).distinct().toList();
    }

    private static int[] permutation(Map<String, Object> frame, int length) {
        List<?> list = listOf(frame, "order", length);
        int[] order = new int[length];
        boolean[] seen = new boolean[length];
        for (int place = 0; place < length; place++) {
            if (!(list.get(place) instanceof Integer one) || one < 0 || one >= length || seen[one]) {
                throw broken("[order] is no permutation");
            }
            seen[one] = true;
            order[place] = one;
        }
        return order;
    }

    private static float[] floats(Map<String, Object> frame, String key, int length, boolean gaps) {
        List<?> list = listOf(frame, key, length);
        float[] values = new float[length];
        for (int place = 0; place < length; place++) {
            Object one = list.get(place);
            if (one == null && gaps) {
                values[place] = Float.NaN;
                continue;
            }
            if (!(one instanceof Number number) || !(number.floatValue() >= 0) || Float.isInfinite(number.floatValue())) {
                throw broken("[" + key + "] holds what is no score: " + Names.shown(one));
            }
            values[place] = number.floatValue();
            if (!gaps && place > 0 && values[place] > values[place - 1]) {
                throw broken("[" + key + "] rises");
            }
        }
        return values;
    }

    private static List<?> listOf(Map<String, Object> frame, String key, int length) {
        if (!(frame.get(key) instanceof List<?> list) || list.size() != length) {
            throw broken("[" + key + "] must be a list of " + length);
        }
        return list;
    }

    private static SidecarFailure broken(String what) {
        return new SidecarFailure(SidecarFailure.Kind.PROTOCOL, "the sidecar's answer breaks the protocol: " + what);
    }
}

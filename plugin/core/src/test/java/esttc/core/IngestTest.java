package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What the processor does to a document; tests/plugin/test_ingest.py tests it in engines. */
class IngestTest {
    private static final Map<String, Object> CONTENT = Map.of(
        "encoder", "e", "text_fields", List.of("text"), "storage", "000102030405060708090a0b0c0d0e0f", "layout", "doc_values"
    );
    private static final Map<String, Object> FEATURES = Map.of("state", "ready", "hash", "of another text", "encoder", "e");
    private static final Map<String, Object> PHRASES = Map.of("enrichment", List.of("a phrase"), "enriched", "plan");

    /** A document as an engine's is: a map that is changed in place. */
    private static final class Written implements Ingest.Document {
        private final Map<String, Object> fields;

        Written(Map<String, Object> fields) {
            this.fields = new LinkedHashMap<>(fields);
        }

        @Override
        public String index() {
            return "index";
        }

        @Override
        public Map<String, Object> source() {
            return new LinkedHashMap<>(fields);
        }

        @Override
        public void put(Map<String, Object> ours) {
            fields.put("ttc", ours);
        }

        @Override
        public void remove(String name) {
            fields.remove(name);
        }
    }

    private static Ingest ingest(Map<String, Object> options) {
        Map<String, Object> left = new HashMap<>(options);
        Ingest made = Ingest.of(left, () -> { throw new AssertionError("nothing is sent"); });
        assertEquals(Map.of(), left);
        return made;
    }

    private static Map<String, Object> stamped(Map<String, Object> options, Map<String, Object> source) {
        Written document = new Written(source);
        ingest(options).stamp(document);
        return document.fields;
    }

    private static Map<String, Object> with(Map<String, Object> one, Map<String, Object> other) {
        Map<String, Object> both = new LinkedHashMap<>(one);
        both.putAll(other);
        return both;
    }

    @Test
    void aFollowedIndexTakesNothingOfOursFromAClient() {
        Map<String, Object> options = Map.of("encode", "later", "enrich", true, "key", "k");
        Map<String, Object> pending = Map.of("text", "a", "ttc", Map.of("state", "pending"));
        for (Object sent : Arrays.asList(
            FEATURES, PHRASES, with(FEATURES, Map.of("key", "another")), with(FEATURES, Map.of("key", 7)), List.of(FEATURES), "text", null
        )) {
            Map<String, Object> source = new LinkedHashMap<>(Map.of("text", "a", "ttc.enriched", "plan", "ttc.key", "k"));
            source.put("ttc", sent);
            assertEquals(pending, stamped(options, source));
        }
        assertEquals(pending, stamped(options, Map.of("text", "a")));
    }

    @Test
    void aWriteWithTheKeyStaysAsItIsWithoutIt() {
        Map<String, Object> sent = with(with(FEATURES, PHRASES), Map.of("key", "k"));
        Map<String, Object> expected = Map.of("text", "a", "ttc", with(FEATURES, PHRASES));
        for (String encode : List.of("now", "later")) {
            Map<String, Object> options = Map.of("encode", encode, "enrich", true, "key", "k", "content", CONTENT);
            assertEquals(expected, stamped(options, Map.of("text", "a", "ttc", sent)));
        }
        Written document = new Written(Map.of("text", "a", "ttc", sent));
        ingest(Map.of("encode", "now", "key", "k")).encode(document, error -> assertEquals(null, error));
        assertEquals(expected, document.fields); // without a request to the gateway
    }

    @Test
    void withAKeyAHashIsNotBelieved() {
        String hash = Content.of(CONTENT).hash(Map.of("text", "a"));
        Map<String, Object> source = Map.of("text", "a", "ttc", Map.of("state", "ready", "hash", hash, "encoder", "e"));
        Map<String, Object> pending = Map.of("text", "a", "ttc", Map.of("state", "pending", "hash", hash));
        assertEquals(pending, stamped(Map.of("encode", "later", "key", "k", "content", CONTENT), source));
        assertEquals(source, stamped(Map.of("encode", "later", "content", CONTENT), source));
    }

    @Test
    void whenDocumentsAreEncoded() {
        assertTrue(ingest(Map.of("encode", "now")).waits());
        assertTrue(ingest(Map.of("wait", true)).waits());
        assertFalse(ingest(Map.of("encode", "later")).waits());
        assertFalse(ingest(Map.of()).waits());
    }

    @Test
    void wrongOptionsAreNamed() {
        Map<Map<String, Object>, String> wrong = Map.of(
            Map.of("encode", "soon"), "[encode] must be one of [now, later], got soon",
            Map.of("encode", true), "[encode] must be one of [now, later], got true",
            Map.of("encode", "now", "wait", true), "[wait] says the same as [encode]: leave [wait] out",
            Map.of("enrich", "yes", "key", "k"), "[enrich] must be true or false, got yes",
            Map.of("key", ""), "[key] must be the key in the index's mapping (_meta.ttc.writes), got ",
            Map.of("enrich", true),
            "[enrich] needs [key]: have `es-ttc index pipeline INDEX --encode later --enrich --plugin` make this pipeline"
        );
        wrong.forEach((options, message) -> {
            Map<String, Object> given = new HashMap<>(options);
            assertEquals(message, assertThrows(IllegalArgumentException.class, () -> Ingest.of(given, null)).getMessage());
        });
    }
}

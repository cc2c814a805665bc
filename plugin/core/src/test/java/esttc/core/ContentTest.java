package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

import java.math.BigInteger;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Expected hashes are those of es_ttc/index/ingest/compose.py; tests/plugin/test_ingest.py compares generated documents. */
class ContentTest {
    private static final Map<String, Object> OPTION = Map.of(
        "encoder", "e", "text_fields", List.of("title", "a.b"), "storage", "000102030405060708090a0b0c0d0e0f", "layout", "doc_values"
    );
    private static final Content CONTENT = Content.of(OPTION);

    @Test
    void hashesAreThoseOfPython() {
        assertEquals("8c748c8578ffe42a8e3a42b3ae833bef-doc_values", CONTENT.hash(Map.of("title", "The cat", "a", Map.of("b", "drinks milk"))));
        List<Object> numbers = Arrays.asList(true, null, "", 7, 1e16, 1e-5, 5e-324, -0.0, 123456789.125, -2.5e300);
        assertEquals("34af3af08712d45fecc91ae46d2aeccc-doc_values", CONTENT.hash(Map.of("title", numbers, "a.b", "ü🐈")));
        List<Object> great = List.of(new BigInteger("18446744073709551616"), new BigInteger("-9223372036854775809"));
        Map<String, Object> greatest = Map.of("title", new BigInteger("18446744073709551615"), "a.b", great);
        assertEquals("eca8648fb42bc0ef91ff89880bef4568-doc_values", CONTENT.hash(greatest));
        assertEquals("be45cb2605bf36bebde684841a28f0fd-doc_values", CONTENT.hash(Map.of("title", "", "other", "text")));
        assertEquals("27f2a43abf40a8e15dd8af3557f5e912-doc_values", CONTENT.hash(Map.of("title", "x".repeat(300))));
        List<Object> objects = List.of(Map.of("b", "one"), "no object", Map.of("c", 1), Map.of("b", List.of("two", 3)));
        assertEquals("8d585550703d38dd7e5fff2ff1a05690-doc_values", CONTENT.hash(Map.of("a", objects)));
    }

    @Test
    void whatIsNoTextHasNoHash() {
        assertNull(CONTENT.hash(Map.of("title", Map.of("no", "text"))));
        assertNull(CONTENT.hash(Map.of("title", "half of a pair: \ud83d")));
    }

    @Test
    void onlyFeaturesOfThisContentAreKept() {
        String hash = CONTENT.hash(Map.of("title", "The cat"));
        assertTrue(CONTENT.isReady(Map.of("hash", hash, "encoder", "e", "state", "ready"), hash));
        for (Object other : Arrays.asList(
            null,
            "ready",
            Map.of("hash", hash, "encoder", "e", "state", "pending"),
            Map.of("hash", hash, "encoder", "another", "state", "ready"),
            Map.of("hash", "another", "encoder", "e", "state", "ready")
        )) {
            assertFalse(CONTENT.isReady(other, hash));
        }
        assertFalse(CONTENT.isReady(Map.of("encoder", "e", "state", "ready"), null));
    }

    @Test
    void anOptionThatSomeoneHasChangedIsRefused() {
        for (Object wrong : List.of(Map.of(), "text", Map.of("encoder", "e", "text_fields", List.of(), "storage", "00", "layout", "doc_values"))) {
            assertThrows(IllegalArgumentException.class, () -> Content.of(wrong));
        }
    }
}

package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** Expected hashes are those of es_ttc/ingest/compose.py; tests/plugin/test_ingest.py compares generated documents. */
class ContentTest {
    private static final Map<String, Object> OPTION = Map.of(
        "encoder", "e", "text_fields", List.of("title", "a.b"), "storage", "000102030405060708090a0b0c0d0e0f", "layout", "stored"
    );
    private static final Content CONTENT = Content.of(OPTION);

    @Test
    void blake2bIsThatOfTheRfc() {
        byte[] abc = "abc".getBytes(StandardCharsets.US_ASCII);
        assertEquals("cf4ab791c62b8d2b2109c90275287816", HexFormat.of().formatHex(Blake2b.digest(abc, 16, new byte[16])));
        String whole = "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
            + "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"; // RFC 7693, appendix A
        assertEquals(whole, HexFormat.of().formatHex(Blake2b.digest(abc, 64, new byte[16])));
    }

    @Test
    void hashesAreThoseOfPython() {
        assertEquals("757c20717fde60ad84edee853fa52f39", CONTENT.hash(Map.of("title", "The cat", "a", Map.of("b", "drinks milk"))));
        List<Object> numbers = Arrays.asList(true, null, "", 7, 1e16, 1e-5, 5e-324, -0.0, 123456789.125, -2.5e300);
        assertEquals("a6888f32fdc517d0a448fe63ee1eb657", CONTENT.hash(Map.of("title", numbers, "a.b", "ü🐈")));
        List<Object> great = List.of(new BigInteger("18446744073709551616"), new BigInteger("-9223372036854775809"));
        Map<String, Object> greatest = Map.of("title", new BigInteger("18446744073709551615"), "a.b", great);
        assertEquals("dd379442d09c541cb2b5ef82bc4a67ed", CONTENT.hash(greatest));
        assertEquals("bf749beb4c248deeb884671df8c6d5c6", CONTENT.hash(Map.of("title", "", "other", "text")));
        assertEquals("18ff1ea17c7af76a08893f982649e66e", CONTENT.hash(Map.of("title", "x".repeat(300))));
        // A message that ends where a block ends, and one byte more.
        assertEquals("34402485759a02b67dd1f2a3803e2f4d", CONTENT.hash(Map.of("title", "y".repeat(235))));
        assertEquals("8c92d7960b0d3584473a5a95f2de8d42", CONTENT.hash(Map.of("title", "y".repeat(236))));
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
        for (Object wrong : List.of(Map.of(), "text", Map.of("encoder", "e", "text_fields", List.of(), "storage", "00", "layout", "stored"))) {
            assertThrows(IllegalArgumentException.class, () -> Content.of(wrong));
        }
    }
}

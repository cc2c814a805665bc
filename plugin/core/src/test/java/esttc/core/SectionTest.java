package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

class SectionTest {
    static Map<String, Object> values(Object... pairs) {
        Map<String, Object> values = new HashMap<>(Map.of("method", "spectral", "query_text", "cats"));
        for (int place = 0; place < pairs.length; place += 2) {
            values.put((String) pairs[place], pairs[place + 1]);
        }
        return values;
    }

    private static String refused(Object... pairs) {
        return assertThrows(IllegalArgumentException.class, () -> Section.of(values(pairs))).getMessage();
    }

    @ParameterizedTest
    @CsvSource({ "200ms,200", "1.5s,1500", "2m,120000", "500micros,0.5", "1h,3600000" })
    void timesAreReadAsTheEnginesWriteThem(String time, double expected) {
        assertEquals(expected, Section.of(values("timeout", time)).timeoutMs(7), 1e-9);
    }

    @Test
    void whatIsLeftOutHasAValue() {
        Section section = Section.of(values());
        assertEquals(7, section.timeoutMs(7));
        assertEquals("spectral", section.method());
        assertTrue(!section.failsOnError());
        assertTrue(Section.of(values("on_error", "fail")).failsOnError());
        assertEquals(section, Section.of(values()));
        assertTrue(!section.windowOnly());
        Section unnamed = Section.of(Map.of("query_text", "cats"));
        assertEquals("blend", unnamed.method());
        assertEquals("blend", unnamed.values().get("method"));
        assertTrue(unnamed.windowOnly());
    }

    @Test
    void mistakesAreNamed() {
        assertTrue(refused("metod", 1).contains("[ttc] unknown field [metod], did you mean [method]?"));
        assertTrue(refused("zzzzzzzz", 1).contains("known fields are"));
        assertTrue(refused("candidates", Map.of("knn", 5)).contains("[ttc.candidates] needs a search through the gateway"));
        assertTrue(refused("method", 1).contains("[ttc.method] is wrong, got 1"));
        assertTrue(refused("method", "").contains("[ttc.method]"));
        assertTrue(refused("query_texts", List.of("dogs")).contains("not both"));
        assertTrue(refused("query_text", null).contains("[ttc.query_text] is missing"));
        assertTrue(refused("query_text", " ").contains("must hold some text"));
        assertTrue(refused("query_text", null, "query_texts", List.of()).contains("[ttc.query_texts]"));
        assertTrue(refused("query_text", null, "query_texts", List.of("a", 1)).contains("[ttc.query_texts]"));
        for (Object time : new Object[] { "5", "0ms", "-1ms", "fast", 5, "1e3ms" }) {
            assertTrue(refused("timeout", time).contains("[ttc.timeout]"), String.valueOf(time));
        }
        assertTrue(refused("on_error", "ignore").contains("[first_pass, fail]"));
        assertTrue(refused("score_mode", "sum").contains("[ttc.score_mode]"));
        assertTrue(refused("query_weight", -1).contains("[ttc.query_weight]"));
        assertTrue(refused("rescore_query_weight", Double.NaN).contains("[ttc.rescore_query_weight]"));
        assertTrue(refused("params", "x").contains("[ttc.params]"));
        assertTrue(refused("detail", "yes").contains("[ttc.detail]"));
        assertTrue(refused("method", "x".repeat(1000) + "\n").length() < 200);
    }
}

package esttc.core;

import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The {@code ttc} section of a search, as far as an engine has to understand it: its shape, its time, what is done when
 * scoring fails. Method and parameters are the sidecar's to judge; it gets the section as its caller wrote it.
 */
public final class Section {
    /** The section's name, that of the rescorer too. */
    public static final String NAME = "ttc";

    /** What a section means that names no method. */
    public static final String DEFAULT_METHOD = "blend";

    private static final Set<String> JOINING = Set.of("blend", "hybrid");
    private static final Set<String> KEYS = Collections.unmodifiableSet(
        new TreeSet<>(
            Set.of(
                "detail",
                "method",
                "on_error",
                "params",
                "query_text",
                "query_texts",
                "query_weight",
                "rescore_query_weight",
                "score_mode",
                "timeout"
            )
        )
    );
    private static final Pattern TIME = Pattern.compile("(\\d{1,15}(?:\\.\\d{1,15})?)(nanos|micros|ms|s|m|h|d)");
    private static final Map<String, Double> UNIT_MS = Map.of(
        "nanos", 1e-6, "micros", 1e-3, "ms", 1.0, "s", 1e3, "m", 6e4, "h", 3.6e6, "d", 8.64e7
    );
    private static final int MOST_TEXTS = 64;

    private final Map<String, Object> values;

    private Section(Map<String, Object> values) {
        this.values = values;
    }

    /**
     * Checks a decoded section.
     *
     * @throws IllegalArgumentException an unknown key, a wrong type, no text
     */
    public static Section of(Map<String, Object> decoded) {
        for (String key : decoded.keySet()) {
            if (key.equals("candidates")) {
                throw new IllegalArgumentException(
                    "[ttc.candidates] needs a search through the gateway: the plugin sees the window alone"
                );
            }
            if (!KEYS.contains(key)) {
                throw new IllegalArgumentException("[ttc] unknown field [" + key + "], " + Names.fix(key, KEYS));
            }
        }
        Map<String, Object> values = new LinkedHashMap<>(decoded);
        if (!values.containsKey("method")) {
            values.put("method", DEFAULT_METHOD);
        }
        Section section = new Section(Collections.unmodifiableMap(values));
        section.check();
        return section;
    }

    /** The section as its caller wrote it, with the default method where it names none. */
    public Map<String, Object> values() {
        return values;
    }

    /** The method's name. */
    public String method() {
        return (String) values.get("method");
    }

    /** Whether the method also ranks documents beside the window where it is asked through the gateway. */
    public boolean windowOnly() {
        return JOINING.contains(method());
    }

    /** The time for scoring that the caller gives, in milliseconds, or {@code fallback}. */
    public double timeoutMs(double fallback) {
        Object timeout = values.get("timeout");
        return timeout == null ? fallback : milliseconds((String) timeout);
    }

    /** Whether the search is to fail when scoring fails. */
    public boolean failsOnError() {
        return "fail".equals(values.get("on_error"));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Section section && values.equals(section.values);
    }

    @Override
    public int hashCode() {
        return values.hashCode();
    }

    private void check() {
        if (!(values.get("method") instanceof String method) || method.isEmpty() || method.length() > 100) {
            throw wrong("method", "must be the name of a method, such as \"spectral\"");
        }
        Object text = values.get("query_text");
        Object texts = values.get("query_texts");
        if (text != null && texts != null) {
            throw new IllegalArgumentException("[ttc] takes [query_text] or [query_texts], not both");
        }
        if (text == null && texts == null) {
            throw new IllegalArgumentException("[ttc.query_text] is missing: inside the engine the text must be given here");
        }
        if (text != null && !isText(text)) {
            throw wrong("query_text", "must hold some text");
        }
        if (texts != null
            && !(texts instanceof List<?> list
                && !list.isEmpty()
                && list.size() <= MOST_TEXTS
                && list.stream().allMatch(Section::isText))) {
            throw wrong("query_texts", "must be a list of 1 to " + MOST_TEXTS + " texts");
        }
        if (values.get("params") != null && !(values.get("params") instanceof Map<?, ?>)) {
            throw wrong("params", "must be an object");
        }
        Object timeout = values.get("timeout");
        if (timeout != null && !(timeout instanceof String time && milliseconds(time) > 0)) {
            throw wrong("timeout", "must be a time of more than 0, e.g. \"200ms\"");
        }
        oneOf("on_error", List.of("first_pass", "fail"));
        oneOf("score_mode", List.of("replace", "total", "multiply", "avg", "max", "min"));
        weight("query_weight");
        weight("rescore_query_weight");
        if (values.get("detail") != null && !(values.get("detail") instanceof Boolean)) {
            throw wrong("detail", "must be true or false");
        }
    }

    private void oneOf(String key, List<String> allowed) {
        Object value = values.get(key);
        if (value != null && !allowed.contains(value)) {
            throw wrong(key, "must be one of " + allowed);
        }
    }

    private void weight(String key) {
        Object value = values.get(key);
        if (value != null && !(value instanceof Number number && number.doubleValue() >= 0 && number.doubleValue() <= 1e9)) {
            throw wrong(key, "must be a number from 0 to 1e9");
        }
    }

    private IllegalArgumentException wrong(String key, String problem) {
        return new IllegalArgumentException("[ttc." + key + "] is wrong, got " + Names.shown(values.get(key)) + ": " + problem);
    }

    private static boolean isText(Object value) {
        return value instanceof String text && !text.isBlank();
    }

    /** A time as engines write it, in milliseconds; not a number where it is none. */
    static double milliseconds(String time) {
        Matcher match = TIME.matcher(time.strip().toLowerCase(java.util.Locale.ROOT));
        return match.matches() ? Double.parseDouble(match.group(1)) * UNIT_MS.get(match.group(2)) : Double.NaN;
    }
}

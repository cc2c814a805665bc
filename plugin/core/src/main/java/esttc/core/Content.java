package esttc.core;

import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What an index's documents are encoded from, and the hash that tells one content from another: the twin of
 * {@code es_ttc/index/ingest/compose.py}, held to it by a test of generated documents.
 *
 * @param encoder key of the index's encoder
 * @param textFields names of the fields that are encoded, in their order
 * @param storage 16 bytes that stand for how the index stores features
 * @param layout the mark of it
 */
public record Content(String encoder, List<String> textFields, byte[] storage, String layout) {
    /** The processor's option that says it; {@code es-ttc index pipeline} writes it. */
    static final String OPTION = "content";

    private static final Set<String> KEYS = Set.of("encoder", "text_fields", "storage", "layout");
    private static final Set<String> SETTLED = Set.of("ready", "empty");
    private static final int HASH_BYTES = 16;
    private static final BigInteger LEAST = BigInteger.valueOf(Long.MIN_VALUE);
    private static final BigInteger MOST = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);

    /** A text field holds what has no text. */
    private static final class NoText extends Exception {
        private static final long serialVersionUID = 1L;
    }

    /**
     * Reads the option.
     *
     * @throws IllegalArgumentException it is not as es-ttc writes it
     */
    static Content of(Object option) {
        if (option instanceof Map<?, ?> map
            && map.keySet().equals(KEYS)
            && map.get("encoder") instanceof String encoder
            && map.get("text_fields") instanceof List<?> fields
            && !fields.isEmpty()
            && fields.stream().allMatch(String.class::isInstance)
            && map.get("storage") instanceof String storage
            && storage.matches("[0-9a-f]{32}")
            && map.get("layout") instanceof String layout
            && layout.matches("[a-z_]{1,40}")) {
            return new Content(encoder, fields.stream().map(String.class::cast).toList(), HexFormat.of().parseHex(storage), layout);
        }
        throw new IllegalArgumentException(
            "[" + OPTION + "] is not as es-ttc writes it: have `es-ttc index pipeline INDEX` make this pipeline, or leave it out"
        );
    }

    /** The content hash of a document, or null for one that has none: a text field of it holds no text. */
    String hash(Map<String, Object> source) {
        ByteArrayOutputStream pairs = new ByteArrayOutputStream();
        try {
            for (String name : textFields) {
                String text = text(value(source, name));
                if (!text.isEmpty()) {
                    for (String part : List.of(name, text)) {
                        ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(part));
                        ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN).putLong(bytes.remaining());
                        pairs.writeBytes(length.array());
                        pairs.write(bytes.array(), bytes.arrayOffset(), bytes.remaining());
                    }
                }
            }
        } catch (NoText | CharacterCodingException unreadable) {
            return null;
        }
        String hash = HexFormat.of().formatHex(digest(pairs.toByteArray()), 0, HASH_BYTES);
        return hash + "-" + layout;
    }

    /** Whether a document comes with the features of this very content, as es-ttc itself writes it. */
    boolean isReady(Object own, String hash) {
        return own instanceof Map<?, ?> map
            && hash != null
            && hash.equals(map.get("hash"))
            && encoder.equals(map.get("encoder"))
            && map.get("state") instanceof String state
            && SETTLED.contains(state);
    }

    private byte[] digest(byte[] pairs) {
        try {
            MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
            sha256.update(storage);
            return sha256.digest(pairs);
        } catch (NoSuchAlgorithmException impossible) { // every Java has it
            throw new IllegalStateException(impossible);
        }
    }

    /** A field's value by its name as it stands, else by its path through objects and lists of objects. */
    private static Object value(Map<?, ?> source, String name) {
        if (source.containsKey(name)) {
            return source.get(name);
        }
        int dot = name.indexOf('.');
        if (dot < 0) {
            return null;
        }
        String rest = name.substring(dot + 1);
        return switch (source.get(name.substring(0, dot))) {
            case Map<?, ?> inner -> value(inner, rest);
            case List<?> list -> {
                List<Object> values = new ArrayList<>(list.size()); // of objects only, and with nulls: they have no text
                for (Object one : list) {
                    if (one instanceof Map<?, ?> inner) {
                        values.add(value(inner, rest));
                    }
                }
                yield values;
            }
            case null, default -> null;
        };
    }

    private static String text(Object value) throws NoText {
        return switch (value) {
            case null -> "";
            case String text -> text;
            case Boolean flag -> flag.toString();
            case BigInteger number when number.compareTo(LEAST) < 0 || number.compareTo(MOST) > 0 -> decimal(number.doubleValue());
            case Double number -> decimal(number);
            case Float number -> decimal(number.doubleValue());
            case BigDecimal number -> decimal(number.doubleValue());
            case Number number -> number.toString();
            case List<?> list -> {
                List<String> texts = new ArrayList<>(list.size());
                for (Object one : list) {
                    String text = text(one);
                    if (!text.isEmpty()) {
                        texts.add(text);
                    }
                }
                yield String.join(" ", texts);
            }
            default -> throw new NoText();
        };
    }

    /** A number as Python writes it: the shortest digits that tell it apart; Java finds them too, but never less than two. */
    private static String decimal(double number) {
        if (!Double.isFinite(number)) {
            return Double.isNaN(number) ? "nan" : number > 0 ? "inf" : "-inf";
        }
        if (number == 0) {
            return Double.toString(number);
        }
        BigDecimal shortest = new BigDecimal(Double.toString(number)).stripTrailingZeros();
        BigDecimal shorter = shortest.round(new MathContext(1));
        shortest = shorter.doubleValue() == number ? shorter : shortest;
        int exponent = shortest.precision() - shortest.scale() - 1;
        if (exponent >= -4 && exponent < 16) {
            String plain = shortest.toPlainString();
            return plain.contains(".") ? plain : plain + ".0";
        }
        String digits = shortest.unscaledValue().abs().toString();
        String tail = digits.length() > 1 ? "." + digits.substring(1) : "";
        String power = (exponent < 0 ? "-" : "+") + (Math.abs(exponent) < 10 ? "0" : "") + Math.abs(exponent);
        return (number < 0 ? "-" : "") + digits.charAt(0) + tail + "e" + power;
    }
}

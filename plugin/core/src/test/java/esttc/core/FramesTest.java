package esttc.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.dataformat.cbor.CBORFactory;
import com.fasterxml.jackson.dataformat.cbor.CBORGenerator;

import org.junit.jupiter.api.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

class FramesTest {
    /** CBOR of maps, lists, numbers, texts. */
    static byte[] cbor(Object value) {
        ByteArrayOutputStream sink = new ByteArrayOutputStream();
        try (CBORGenerator out = new CBORFactory().createGenerator(sink)) {
            write(out, value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return sink.toByteArray();
    }

    private static void write(CBORGenerator out, Object value) throws IOException {
        switch (value) {
            case null -> out.writeNull();
            case Map<?, ?> map -> {
                out.writeStartObject();
                for (Map.Entry<?, ?> one : map.entrySet()) {
                    out.writeFieldName((String) one.getKey());
                    write(out, one.getValue());
                }
                out.writeEndObject();
            }
            case List<?> list -> {
                out.writeStartArray();
                for (Object one : list) {
                    write(out, one);
                }
                out.writeEndArray();
            }
            case Integer number -> out.writeNumber(number);
            case Double number -> out.writeNumber(number);
            default -> out.writeString((String) value);
        }
    }

    static Map<String, Object> ranking() {
        Map<String, Object> frame = new LinkedHashMap<>();
        frame.put("version", 1);
        frame.put("scores", Arrays.asList(0.25, null, 0.5));
        frame.put("order", List.of(2, 0, 1));
        frame.put("final", List.of(0.5, 0.25, 0));
        frame.put("news", Map.of("of a", List.of("later release")));
        return frame;
    }

    private static Answer answer(String key, Object value) {
        Map<String, Object> frame = ranking();
        frame.put(key, value);
        return Frames.answer(cbor(frame), 3);
    }

    @Test
    void aRankingIsRead() {
        Answer.Ranking ranking = assertInstanceOf(Answer.Ranking.class, Frames.answer(cbor(ranking()), 3));
        assertArrayEquals(new int[] { 2, 0, 1 }, ranking.order());
        assertArrayEquals(new float[] { 0.5f, 0.25f, 0 }, ranking.scores());
        assertArrayEquals(new float[] { 0.25f, Float.NaN, 0.5f }, ranking.methodScores());
    }

    @Test
    void whatIsMissingIsReadOnce() {
        Map<String, Object> frame = Map.of("version", 1, "missing", List.of("a", "b", "a"), "fields", List.of("ttc.tokens"));
        Answer.Missing missing = assertInstanceOf(Answer.Missing.class, Frames.answer(cbor(frame), 3));
        assertEquals(List.of("a", "b"), missing.hashes());
        assertThrows(SidecarFailure.class, () -> Frames.answer(cbor(frame), 2)); // more than there are documents
    }

    @Test
    void whatBreaksTheProtocolIsRefused() {
        for (Object order : new Object[] { List.of(0, 1), List.of(0, 1, 1), List.of(0, 1, 3), List.of(-1, 0, 1), "x", List.of(0, 1, 2.0) }) {
            assertThrows(SidecarFailure.class, () -> answer("order", order), String.valueOf(order));
        }
        for (Object scores : new Object[] { List.of(0, 1, 2), List.of(1, -1, -2), List.of(Double.NaN, 0, 0), List.of(1e300, 1, 1), List.of(1) }) {
            assertThrows(SidecarFailure.class, () -> answer("final", scores), String.valueOf(scores));
        }
        assertThrows(SidecarFailure.class, () -> answer("scores", List.of("1", 1, 1)));
        for (Object version : new Object[] { 2, "1", null, 1.5 }) {
            SidecarFailure failure = assertThrows(SidecarFailure.class, () -> answer("version", version));
            assertEquals(SidecarFailure.Kind.PROTOCOL, failure.kind());
        }
    }

    @Test
    void noBytesMakeItFailInAnotherWay() {
        byte[] whole = cbor(ranking());
        List<byte[]> frames = new ArrayList<>();
        for (int length = 0; length < whole.length; length++) {
            frames.add(Arrays.copyOf(whole, length));
        }
        Random random = new Random(7);
        for (int number = 0; number < 20_000; number++) {
            byte[] damaged = whole.clone();
            for (int flips = random.nextInt(4); flips >= 0; flips--) {
                damaged[random.nextInt(damaged.length)] = (byte) random.nextInt();
            }
            frames.add(damaged);
        }
        byte[] deep = new byte[100_000];
        Arrays.fill(deep, (byte) 0x81);
        frames.add(deep);
        int refused = 0;
        for (byte[] frame : frames) {
            try {
                Frames.answer(frame, 3);
            } catch (SidecarFailure failure) {
                refused++;
                assertEquals(SidecarFailure.Kind.PROTOCOL, failure.kind());
            }
        }
        assertTrue(refused > whole.length);
    }

    @Test
    void anErrorIsReadOrNot() {
        Map<String, Object> error = Map.of("error", Map.of("type", "t", "reason", "r"), "status", 400);
        assertArrayEquals(new String[] { "t", "r" }, Frames.error(cbor(error)));
        assertArrayEquals(new String[2], Frames.error(cbor(Map.of("error", "no"))));
        assertArrayEquals(new String[2], Frames.error("<html>".getBytes(java.nio.charset.StandardCharsets.UTF_8)));
    }
}

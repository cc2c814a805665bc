package esttc.core;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * A request as it is sent, in parts: features stand in it as they were read. A window's are some 10 MB, and each copy of
 * them would be one more large piece of heap for every window that waits.
 */
public final class Frame {
    private static final int BYTES = 2; // major types of CBOR, RFC 8949
    private static final int TEXT = 3;
    private static final int MAP = 5;
    private static final int ONE_BYTE = 24; // what says how many bytes of a length follow: 24 + log2
    private static final int TWO_BYTES = 25;
    private static final int FOUR_BYTES = 26;

    private final List<byte[]> parts = new ArrayList<>();
    private long length;

    Frame(byte[] part) {
        add(part);
    }

    /** All of it, in bytes. */
    public long length() {
        return length;
    }

    /** Sends the parts one after the other, as often as it is asked to. */
    BodyPublisher body() {
        return BodyPublishers.fromPublisher(BodyPublishers.ofByteArrays(parts), length);
    }

    /** Adds blobs: a map by hash of maps by field. */
    void add(Map<String, Map<String, byte[]>> features) {
        ByteArrayOutputStream before = new ByteArrayOutputStream();
        head(before, MAP, features.size());
        for (Map.Entry<String, Map<String, byte[]>> document : features.entrySet()) {
            text(before, document.getKey());
            head(before, MAP, document.getValue().size());
            for (Map.Entry<String, byte[]> blob : document.getValue().entrySet()) {
                text(before, blob.getKey());
                head(before, BYTES, blob.getValue().length);
                add(before.toByteArray());
                before.reset();
                add(blob.getValue());
            }
        }
        add(before.toByteArray());
    }

    private void add(byte[] part) {
        if (part.length > 0) {
            parts.add(part);
            length += part.length;
        }
    }

    /** The first bytes of a map in CBOR, whose keys and values follow. */
    static byte[] mapOf(int entries) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        head(out, MAP, entries);
        return out.toByteArray();
    }

    private static void text(ByteArrayOutputStream out, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        head(out, TEXT, bytes.length);
        out.writeBytes(bytes);
    }

    private static void head(ByteArrayOutputStream out, int major, int length) {
        int type = major << 5;
        if (length < ONE_BYTE) {
            out.write(type | length);
        } else if (length < 1 << 8) {
            out.write(type | ONE_BYTE);
            out.write(length);
        } else if (length < 1 << 16) {
            out.write(type | TWO_BYTES);
            out.write(length >> 8);
            out.write(length);
        } else {
            out.write(type | FOUR_BYTES);
            out.write(length >> 24);
            out.write(length >> 16);
            out.write(length >> 8);
            out.write(length);
        }
    }
}

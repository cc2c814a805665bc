package esttc.core;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The blob of one document's token vectors, made here of nested vectors: the container of es_ttc/vectors/packed.py, as
 * float16. As float32 a window would be twice as long, and longer than most frames may be.
 */
public final class TokenBlob {
    /** The field with the blob, or with the nested objects. */
    public static final String FIELD = "ttc.tokens";
    /** The vector of a nested object. */
    public static final String VECTOR = "ttc.tokens.v";
    /** The end of a content hash whose token vectors are nested. */
    public static final String MARK = "-nested_vectors";

    private static final byte[] MAGIC = { 'T', 'T', 'C', 2 };
    private static final int HEADER = 16;
    private static final byte TOKENS = 1;
    private static final byte FLOAT16 = 2;

    private final ByteArrayOutputStream rows = new ByteArrayOutputStream();
    private int count;
    private int dims;

    /** Adds a token's vector. */
    public void add(float[] vector) {
        ByteBuffer row = ByteBuffer.allocate(Short.BYTES * vector.length).order(ByteOrder.LITTLE_ENDIAN);
        for (float value : vector) {
            row.putShort(Float.floatToFloat16(value));
        }
        rows.writeBytes(row.array());
        dims = vector.length;
        count++;
    }

    /** Adds a token's vector, as little-endian float32. */
    public void add(byte[] vector) {
        float[] values = new float[vector.length / Float.BYTES];
        ByteBuffer.wrap(vector).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(values);
        add(values);
    }

    /** The blob, or null where there was no vector. */
    public byte[] bytes() {
        if (count == 0) {
            return null;
        }
        ByteBuffer blob = ByteBuffer.allocate(HEADER + rows.size()).order(ByteOrder.LITTLE_ENDIAN);
        blob.put(MAGIC).put(TOKENS).put(FLOAT16).putShort((short) 0).putInt(count).putInt(dims);
        return blob.put(rows.toByteArray()).array();
    }
}

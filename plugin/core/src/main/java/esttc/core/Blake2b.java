package esttc.core;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** BLAKE2b without a key (RFC 7693) and with a personalisation, as Python's hashlib has it and Java has not. */
final class Blake2b {
    private static final int BLOCK = 128;
    private static final int ROUNDS = 12;
    private static final int PERSONAL = 16;
    private static final long[] IV = {
        0x6a09e667f3bcc908L, 0xbb67ae8584caa73bL, 0x3c6ef372fe94f82bL, 0xa54ff53a5f1d36f1L,
        0x510e527fade682d1L, 0x9b05688c2b3e6c1fL, 0x1f83d9abfb41bd6bL, 0x5be0cd19137e2179L
    };
    private static final int[][] SIGMA = {
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
        { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
        { 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
        { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
        { 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
        { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
        { 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
        { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
        { 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
        { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 }
    };
    private static final int[][] LANES = {
        { 0, 4, 8, 12 }, { 1, 5, 9, 13 }, { 2, 6, 10, 14 }, { 3, 7, 11, 15 },
        { 0, 5, 10, 15 }, { 1, 6, 11, 12 }, { 2, 7, 8, 13 }, { 3, 4, 9, 14 }
    };

    private Blake2b() {}

    /**
     * Hashes a message.
     *
     * @param size bytes of the digest, 1 to 64
     * @param personal 16 bytes
     */
    static byte[] digest(byte[] message, int size, byte[] personal) {
        ByteBuffer person = ByteBuffer.wrap(Arrays.copyOf(personal, PERSONAL)).order(ByteOrder.LITTLE_ENDIAN);
        long[] state = IV.clone();
        state[0] ^= 0x01010000L ^ size; // no key, fanout 1, depth 1
        state[6] ^= person.getLong(0);
        state[7] ^= person.getLong(8);
        int start = 0;
        for (; message.length - start > BLOCK; start += BLOCK) {
            compress(state, message, start, BLOCK, false);
        }
        compress(state, message, start, message.length - start, true);
        ByteBuffer out = ByteBuffer.allocate(Long.BYTES * state.length).order(ByteOrder.LITTLE_ENDIAN);
        for (long word : state) {
            out.putLong(word);
        }
        return Arrays.copyOf(out.array(), size);
    }

    private static void compress(long[] state, byte[] message, int start, int length, boolean last) {
        ByteBuffer block = ByteBuffer.wrap(Arrays.copyOf(Arrays.copyOfRange(message, start, start + length), BLOCK)).order(ByteOrder.LITTLE_ENDIAN);
        long[] v = new long[16];
        System.arraycopy(state, 0, v, 0, 8);
        System.arraycopy(IV, 0, v, 8, 8);
        v[12] ^= (long) start + length;
        v[14] ^= last ? -1L : 0;
        for (int round = 0; round < ROUNDS; round++) {
            int[] sigma = SIGMA[round % SIGMA.length];
            for (int lane = 0; lane < LANES.length; lane++) {
                int[] at = LANES[lane];
                long x = block.getLong(Long.BYTES * sigma[2 * lane]);
                long y = block.getLong(Long.BYTES * sigma[2 * lane + 1]);
                v[at[0]] += v[at[1]] + x;
                v[at[3]] = Long.rotateRight(v[at[3]] ^ v[at[0]], 32);
                v[at[2]] += v[at[3]];
                v[at[1]] = Long.rotateRight(v[at[1]] ^ v[at[2]], 24);
                v[at[0]] += v[at[1]] + y;
                v[at[3]] = Long.rotateRight(v[at[3]] ^ v[at[0]], 16);
                v[at[2]] += v[at[3]];
                v[at[1]] = Long.rotateRight(v[at[1]] ^ v[at[2]], 63);
            }
        }
        for (int word = 0; word < 8; word++) {
            state[word] ^= v[word] ^ v[word + 8];
        }
    }
}

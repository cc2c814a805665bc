package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import org.junit.jupiter.api.Test;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HexFormat;

class TokenBlobTest {
    @Test
    void isTheContainerOfPython() {
        TokenBlob blob = new TokenBlob();
        blob.add(new float[] { 1, -0.5f, 0.1f });
        ByteBuffer row = ByteBuffer.allocate(12).order(ByteOrder.LITTLE_ENDIAN).putFloat(0).putFloat(2).putFloat(-1e-3f);
        blob.add(row.array());
        // pack_tokens(TokenVectors(np.array([[1, -.5, .1], [0, 2, -1e-3]], np.float16))).hex()
        assertEquals("54544302010200000200000003000000003c00b8662e000000401994", HexFormat.of().formatHex(blob.bytes()));
    }

    @Test
    void withoutVectorsThereIsNone() {
        assertNull(new TokenBlob().bytes());
    }
}

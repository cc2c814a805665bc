package esttc.core;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.dataformat.cbor.CBORFactory;

import org.junit.jupiter.api.Test;

import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpResponse.BodySubscribers;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Flow;

class FrameTest {
    private static final List<Candidate> WINDOW = List.of(new Candidate("a", "e", 3, "i"));

    @Test
    void blobsOfAnyLengthStandInTheFrameAsTheyWereRead() throws Exception {
        Map<String, Map<String, byte[]>> features = new LinkedHashMap<>();
        int number = 0;
        for (int length : new int[] { 0, 1, 23, 24, 255, 256, 65_535, 65_536, 100_000 }) {
            byte[] blob = new byte[length];
            new Random(length).nextBytes(blob);
            features.put("h".repeat(20 + 2 * number++), Map.of("ttc.tokens", blob));
        }
        features.put("nothing", Map.of());
        for (int more = 0; more < 300; more++) {
            features.put("hash-" + more, Map.of("ü", new byte[] { (byte) more }, "field", new byte[] { 1 }));
        }
        Frame frame = Frames.request(Section.of(SectionTest.values()), 5, 10, WINDOW, features);
        for (byte[] sent : List.of(bytes(frame), bytes(frame))) { // a frame may be sent again
            assertEquals(frame.length(), sent.length);
            try (JsonParser in = new CBORFactory().createParser(sent)) {
                assertEquals(JsonToken.START_OBJECT, in.nextToken());
                Map<String, Map<String, byte[]>> found = null;
                while (in.nextToken() == JsonToken.FIELD_NAME) {
                    String name = in.currentName();
                    in.nextToken();
                    if (name.equals("features")) {
                        found = blobs(in);
                    } else {
                        in.skipChildren();
                    }
                }
                assertNull(in.nextToken());
                assertEquals(List.copyOf(features.keySet()), List.copyOf(found.keySet()));
                for (Map.Entry<String, Map<String, byte[]>> one : features.entrySet()) {
                    assertEquals(one.getValue().keySet(), found.get(one.getKey()).keySet());
                    for (Map.Entry<String, byte[]> blob : one.getValue().entrySet()) {
                        assertArrayEquals(blob.getValue(), found.get(one.getKey()).get(blob.getKey()));
                    }
                }
            }
        }
    }

    private static Map<String, Map<String, byte[]>> blobs(JsonParser in) throws Exception {
        Map<String, Map<String, byte[]>> found = new LinkedHashMap<>();
        while (in.nextToken() == JsonToken.FIELD_NAME) {
            Map<String, byte[]> blobs = new LinkedHashMap<>();
            found.put(in.currentName(), blobs);
            in.nextToken();
            while (in.nextToken() == JsonToken.FIELD_NAME) {
                String field = in.currentName();
                in.nextToken();
                blobs.put(field, in.getBinaryValue());
            }
        }
        return found;
    }

    private static byte[] bytes(Frame frame) throws Exception {
        BodyPublisher body = frame.body();
        var whole = BodySubscribers.ofByteArray();
        body.subscribe(new Flow.Subscriber<ByteBuffer>() {
            @Override
            public void onSubscribe(Flow.Subscription subscription) {
                whole.onSubscribe(subscription);
            }

            @Override
            public void onNext(ByteBuffer part) {
                whole.onNext(List.of(part));
            }

            @Override
            public void onError(Throwable error) {
                whole.onError(error);
            }

            @Override
            public void onComplete() {
                whole.onComplete();
            }
        });
        return whole.getBody().toCompletableFuture().get();
    }
}

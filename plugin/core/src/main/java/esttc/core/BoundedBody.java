package esttc.core;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;

/** A response's body, as long as it is no longer than a bound. */
final class BoundedBody implements HttpResponse.BodySubscriber<byte[]> {
    private final int most;
    private final CompletableFuture<byte[]> body = new CompletableFuture<>();
    private final ByteArrayOutputStream sink = new ByteArrayOutputStream();
    private Flow.Subscription subscription;

    BoundedBody(int most) {
        this.most = most;
    }

    @Override
    public CompletionStage<byte[]> getBody() {
        return body;
    }

    @Override
    public void onSubscribe(Flow.Subscription given) {
        subscription = given;
        given.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> parts) {
        for (ByteBuffer part : parts) {
            if (sink.size() + part.remaining() > most) {
                subscription.cancel();
                String reason = "the sidecar's answer is longer than " + most + " bytes";
                body.completeExceptionally(new SidecarFailure(SidecarFailure.Kind.PROTOCOL, reason));
                return;
            }
            byte[] piece = new byte[part.remaining()];
            part.get(piece);
            sink.writeBytes(piece);
        }
    }

    @Override
    public void onError(Throwable error) {
        body.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        body.complete(sink.toByteArray());
    }
}

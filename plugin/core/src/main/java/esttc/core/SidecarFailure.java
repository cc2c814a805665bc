package esttc.core;

import java.util.Locale;

/** Scoring failed, and not by the caller's fault: the first pass stands. */
public final class SidecarFailure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** Why; the names under which failures are counted. */
    public enum Kind {
        /** No connection, or the connection broke. */
        UNAVAILABLE,
        /** No answer in time. */
        LATE,
        /** An answer, or a refusal, that breaks the protocol. */
        PROTOCOL,
        /** The token is wrong. */
        UNAUTHORIZED,
        /** Too much is in flight, here or there. */
        BUSY,
        /** The window's features are larger than what may be sent. */
        TOO_LARGE,
        /** No document of the window has features. */
        NO_FEATURES,
        /** The sidecar failed. */
        SIDECAR,
        /** Nothing was asked: too many failures have just been seen. */
        BREAKER_OPEN,
        /** No sidecar is configured. */
        NOT_CONFIGURED,
        /** The shard could not be read. */
        READ;

        /** The name in statistics. */
        public String key() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    private final Kind kind;

    public SidecarFailure(Kind kind, String reason) {
        super(reason, null, false, false);
        this.kind = kind;
    }

    public Kind kind() {
        return kind;
    }
}

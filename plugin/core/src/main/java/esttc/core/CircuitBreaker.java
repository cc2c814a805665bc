package esttc.core;

import java.util.function.LongSupplier;

/** Stops asking a sidecar that has just failed several times in a row; after a pause one search tries again. */
public final class CircuitBreaker {
    private final int failuresToOpen;
    private final long pauseNanos;
    private final LongSupplier clock;
    private int failures;
    private boolean open;
    private long openUntil;
    private long opened;

    /**
     * @param failuresToOpen failures in a row after which nothing is asked
     * @param pauseNanos for how long
     * @param clock {@link System#nanoTime} outside of tests
     */
    public CircuitBreaker(int failuresToOpen, long pauseNanos, LongSupplier clock) {
        this.failuresToOpen = failuresToOpen;
        this.pauseNanos = pauseNanos;
        this.clock = clock;
    }

    /** Whether the sidecar may be asked now. */
    public synchronized boolean allows() {
        if (!open) {
            return true;
        }
        long now = clock.getAsLong();
        if (now - openUntil < 0) {
            return false;
        }
        openUntil = now + pauseNanos; // one tries; the others wait for what comes of it
        return true;
    }

    /** The sidecar answered. */
    public synchronized void succeeded() {
        failures = 0;
        open = false;
    }

    /**
     * The sidecar did not answer.
     *
     * @return whether this opened the breaker, which is worth a line in the log
     */
    public synchronized boolean failed() {
        failures++;
        if (failures < failuresToOpen) {
            return false;
        }
        boolean now = !open;
        open = true;
        openUntil = clock.getAsLong() + pauseNanos;
        opened += now ? 1 : 0;
        return now;
    }

    public synchronized boolean isOpen() {
        return open;
    }

    /** How often it has opened. */
    public synchronized long opened() {
        return opened;
    }
}

package esttc.core;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

import java.util.concurrent.atomic.AtomicLong;

class CircuitBreakerTest {
    private final AtomicLong now = new AtomicLong();
    private final CircuitBreaker breaker = new CircuitBreaker(3, 100, now::get);

    @Test
    void itOpensAfterFailuresInARowAndLetsOneTry() {
        assertFalse(breaker.failed());
        assertFalse(breaker.failed());
        breaker.succeeded();
        assertFalse(breaker.failed());
        assertFalse(breaker.failed());
        assertTrue(breaker.allows());
        assertTrue(breaker.failed());
        assertFalse(breaker.allows());
        now.addAndGet(100);
        assertTrue(breaker.allows());
        assertFalse(breaker.allows()); // one tries
        assertFalse(breaker.failed()); // it was open already: no further line in the log
        now.addAndGet(99);
        assertFalse(breaker.allows());
        now.addAndGet(1);
        assertTrue(breaker.allows());
        breaker.succeeded();
        assertTrue(breaker.allows());
        assertFalse(breaker.isOpen());
        assertEquals(1, breaker.opened());
    }
}

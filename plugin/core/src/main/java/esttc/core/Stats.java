package esttc.core;

import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;

/** What is counted on a node since it started. */
public final class Stats {
    final LongAdder windows = new LongAdder();
    final LongAdder applied = new LongAdder();
    final LongAdder refused = new LongAdder();
    final LongAdder roundTrips = new LongAdder();
    final LongAdder bytesSent = new LongAdder();
    final LongAdder documents = new LongAdder();
    final LongAdder encoded = new LongAdder();
    final LongAdder nanos = new LongAdder();
    final AtomicInteger inFlight = new AtomicInteger();
    final Map<SidecarFailure.Kind, LongAdder> firstPass = new EnumMap<>(SidecarFailure.Kind.class);

    public Stats() {
        for (SidecarFailure.Kind kind : SidecarFailure.Kind.values()) {
            firstPass.put(kind, new LongAdder());
        }
    }

    /** All of it, by name. */
    public Map<String, Object> asMap() {
        Map<String, Object> reasons = new LinkedHashMap<>();
        long fallen = 0;
        for (Map.Entry<SidecarFailure.Kind, LongAdder> entry : firstPass.entrySet()) {
            reasons.put(entry.getKey().key(), entry.getValue().sum());
            fallen += entry.getValue().sum();
        }
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("windows", windows.sum());
        all.put("applied", applied.sum());
        all.put("refused", refused.sum());
        all.put("first_pass", fallen);
        all.put("first_pass_reasons", reasons);
        all.put("round_trips", roundTrips.sum());
        all.put("bytes_sent", bytesSent.sum());
        all.put("time_in_millis", nanos.sum() / 1_000_000);
        all.put("documents", documents.sum());
        all.put("documents_encoded", encoded.sum());
        all.put("in_flight", inFlight.get());
        return all;
    }
}

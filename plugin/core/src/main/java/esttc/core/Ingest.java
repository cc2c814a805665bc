package esttc.core;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The ingest processor {@code ttc}, without an engine: stamps documents with their hash and as pending, so that nobody
 * takes features of an earlier text for theirs; with {@code encode: now}, has them encoded before they are indexed.
 *
 * <p>In the pipeline of an index whose writes are followed it has the index's key, and does what the pipeline of the
 * engine's own processors does: a write with the key is one of es-ttc and keeps its features, any other write loses
 * what it sends below {@code ttc}, so it is pending for the jobs that encode and enrich. Without a key it recognises
 * es-ttc's own writes by the content hash.
 */
public final class Ingest {
    /** The processor's name. */
    public static final String TYPE = Section.NAME;

    private static final String DOTTED = Section.NAME + ".";
    private static final String PENDING = "pending";
    private static final String FAIL = "fail";
    private static final String NOW = "now";
    private static final String LATER = "later";
    private static final String KEY = "key";

    private final boolean wait;
    private final boolean fails;
    private final double timeoutMs;
    private final String key;
    private final Content content;
    private final Supplier<EncodingQueue> queue;

    /** A document on its way into an index. */
    public interface Document {
        /** The index that it goes to. */
        String index();

        /** A copy of its fields, without the engine's metadata. */
        Map<String, Object> source();

        /** Sets what stands below {@code ttc}. */
        void put(Map<String, Object> ours);

        /** Takes away the field of exactly this name, dots and all. */
        void remove(String name);
    }

    private Ingest(boolean wait, boolean fails, double timeoutMs, String key, Content content, Supplier<EncodingQueue> queue) {
        this.wait = wait;
        this.fails = fails;
        this.timeoutMs = timeoutMs;
        this.key = key;
        this.content = content;
        this.queue = queue;
    }

    /**
     * Reads and takes the processor's options; what is left is unknown to it.
     *
     * @param options the processor's configuration
     * @param queue where documents wait for the sidecar
     * @throws IllegalArgumentException naming the option and the fix
     */
    public static Ingest of(Map<String, Object> options, Supplier<EncodingQueue> queue) {
        boolean wait = waits(options.remove("encode"), options.remove("wait"));
        String key = key(options.remove("enrich"), options.remove(KEY));
        Object onError = options.remove("on_error");
        if (onError != null && !List.of(PENDING, FAIL).contains(onError)) {
            throw new IllegalArgumentException("[on_error] must be one of [pending, fail], got " + Names.shown(onError));
        }
        Object timeout = options.remove("timeout");
        double timeoutMs = timeout == null ? 30_000 : timeout instanceof String time ? Section.milliseconds(time) : Double.NaN;
        if (!(timeoutMs > 0)) {
            throw new IllegalArgumentException("[timeout] must be a time of more than 0, e.g. \"30s\", got " + Names.shown(timeout));
        }
        Object content = options.remove(Content.OPTION);
        return new Ingest(wait, FAIL.equals(onError), timeoutMs, key, content == null ? null : Content.of(content), queue);
    }

    /** Whether documents are encoded now: said by {@code encode}, or by the older {@code wait}. */
    private static boolean waits(Object encode, Object wait) {
        if (wait != null && !(wait instanceof Boolean)) {
            throw new IllegalArgumentException("[wait] must be true or false, got " + Names.shown(wait));
        }
        if (encode != null && !List.of(NOW, LATER).contains(encode)) {
            throw new IllegalArgumentException("[encode] must be one of [now, later], got " + Names.shown(encode));
        }
        if (encode != null && wait != null) {
            throw new IllegalArgumentException("[wait] says the same as [encode]: leave [wait] out");
        }
        return encode == null ? Boolean.TRUE.equals(wait) : NOW.equals(encode);
    }

    /** The key of es-ttc's own writes, or null. Phrases of the job that enriches are told from a client's by it alone. */
    private static String key(Object enrich, Object key) {
        if (enrich != null && !(enrich instanceof Boolean)) {
            throw new IllegalArgumentException("[enrich] must be true or false, got " + Names.shown(enrich));
        }
        if (key != null && !(key instanceof String text && !text.isEmpty())) {
            throw new IllegalArgumentException("[" + KEY + "] must be the key in the index's mapping (_meta.ttc.writes), got " + Names.shown(key));
        }
        if (key == null && Boolean.TRUE.equals(enrich)) {
            throw new IllegalArgumentException(
                "[enrich] needs [" + KEY + "]: have `es-ttc index pipeline INDEX --encode later --enrich --plugin` make this pipeline"
            );
        }
        return (String) key;
    }

    /** Whether documents wait for the sidecar. */
    public boolean waits() {
        return wait;
    }

    /** Stamps a document; one that es-ttc itself has written with its features is left alone. */
    public void stamp(Document document) {
        stamped(document, document.source());
    }

    /**
     * Stamps a document and has it encoded.
     *
     * @param done told why the document is refused, or null where it may go on; on any thread
     */
    public void encode(Document document, Consumer<String> done) {
        Map<String, Object> source = document.source();
        if (stamped(document, source)) {
            done.accept(null);
            return;
        }
        queue.get().add(new EncodingQueue.Waiting(document.index(), source, timeoutMs, (ours, error) -> {
            if (ours != null) {
                document.put(ours);
            }
            done.accept(ours == null && fails ? error : null);
        }));
    }

    /** Takes what is ours out of the source; returns whether there is nothing left to do. */
    private boolean stamped(Document document, Map<String, Object> source) {
        Object own = source.remove(Section.NAME);
        for (String name : source.keySet().stream().filter(key -> key.startsWith(DOTTED)).toList()) {
            source.remove(name); // engines would index it as if it stood inside the object
            document.remove(name);
        }
        if (key != null && own instanceof Map<?, ?> sent && key.equals(sent.get(KEY))) {
            document.put(withoutKey(sent));
            return true;
        }
        String hash = content == null ? null : content.hash(source);
        if (key == null && content != null && content.isReady(own, hash)) {
            return true;
        }
        Map<String, Object> stamp = new LinkedHashMap<>();
        stamp.put("state", PENDING);
        if (hash != null) {
            stamp.put("hash", hash);
        }
        document.put(stamp);
        return false;
    }

    private static Map<String, Object> withoutKey(Map<?, ?> sent) {
        Map<String, Object> kept = new LinkedHashMap<>();
        sent.forEach((name, value) -> kept.put(String.valueOf(name), value));
        kept.remove(KEY);
        return kept;
    }
}

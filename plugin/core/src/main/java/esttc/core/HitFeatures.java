package esttc.core;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What the hits of a search carry for es-ttc, read by searches in the caller's name: on the coordinator are no shards. */
public final class HitFeatures implements FeatureSource {
    /** The field with the content hash. */
    public static final String HASH = "ttc.hash";
    /** The field with the encoder's key. */
    public static final String ENCODER = "ttc.encoder";

    /** Token vectors of one document that are read at most: what engines allow of nested objects. */
    public static final int MOST_TOKENS = 10_000;
    private static final int AT_ONCE = 50; // documents whose blobs stand in one answer

    private final Search search;
    private final List<Hit> hits;
    private final boolean asked;
    private final Map<String, Hit> byHash = new HashMap<>();

    /**
     * A hit of the first pass.
     *
     * @param hash its content hash, or null where it does not say
     * @param encoder its encoder, or null
     */
    public record Hit(String index, String id, float score, String hash, String encoder) {}

    /**
     * A document as a search for it shows it.
     *
     * @param hash its content hash, or null
     * @param encoder its encoder, or null
     * @param blobs the fields that were asked for and that it has
     */
    public record Found(String id, String hash, String encoder, Map<String, byte[]> blobs) {}

    /** Where a document's features are. */
    public enum Layout {
        /** Blobs in doc values. */
        DOC_VALUES,
        /** Token vectors as nested vectors, all else as blobs in stored fields. */
        NESTED;

        static Layout of(String hash) {
            return hash.endsWith(TokenBlob.MARK) ? NESTED : DOC_VALUES;
        }
    }

    /** Asks the engine for documents of an index. */
    @FunctionalInterface
    public interface Search {
        /**
         * Searches in the caller's name.
         *
         * @param blobs fields to read; nested token vectors become a blob
         * @param layout where they are
         * @param budget told of every blob
         */
        List<Found> documents(String index, List<String> ids, List<String> blobs, Layout layout, Budget budget);
    }

    /**
     * @param search asks for documents
     * @param hits the first pass, best first
     * @param asked whether the first pass was asked for hashes: a hit that says none has none
     */
    public HitFeatures(Search search, List<Hit> hits, boolean asked) {
        this.search = search;
        this.hits = hits;
        this.asked = asked;
    }

    /** The hits as candidates; where they do not say their hashes, these are looked up. */
    public List<Candidate> candidates() {
        Map<String, List<String>> unknown = new LinkedHashMap<>();
        for (Hit hit : hits) {
            if (hit.hash() == null && !asked) {
                unknown.computeIfAbsent(hit.index(), index -> new ArrayList<>()).add(hit.id());
            }
        }
        Map<String, Found> looked = new HashMap<>();
        unknown.forEach((index, ids) -> {
            for (Found found : search.documents(index, ids, List.of(), Layout.DOC_VALUES, bytes -> {})) {
                looked.put(index + "/" + found.id(), found);
            }
        });
        List<Candidate> candidates = new ArrayList<>(hits.size());
        for (Hit hit : hits) {
            Found found = hit.hash() == null ? looked.get(hit.index() + "/" + hit.id()) : null;
            String encoder = found == null ? hit.encoder() : found.encoder();
            String hash = encoder == null ? null : found == null ? hit.hash() : found.hash();
            if (hash != null) {
                byHash.putIfAbsent(hash, hit);
            }
            candidates.add(new Candidate(hash, encoder, hit.score(), hit.index()));
        }
        return candidates;
    }

    @Override
    public Map<String, Map<String, byte[]>> read(List<String> hashes, List<String> fields, Budget budget) throws IOException {
        Map<String, Map<String, byte[]>> read = new LinkedHashMap<>();
        Map<Place, List<String>> wanted = new LinkedHashMap<>();
        for (String hash : hashes) {
            read.put(hash, Map.of());
            Hit hit = byHash.get(hash);
            if (hit != null) {
                Place place = new Place(hit.index(), Layout.of(hash));
                wanted.computeIfAbsent(place, ignored -> new ArrayList<>()).add(hit.id());
            }
        }
        wanted.forEach((place, ids) -> {
            for (int start = 0; start < ids.size(); start += AT_ONCE) {
                List<String> some = ids.subList(start, Math.min(ids.size(), start + AT_ONCE));
                for (Found found : search.documents(place.index(), some, fields, place.layout(), budget)) {
                    read.replace(found.hash(), found.blobs()); // one that has just been changed has another hash
                }
            }
        });
        return read;
    }

    private record Place(String index, Layout layout) {}
}

package esttc.core;

/**
 * One document of a first pass.
 *
 * @param hash its {@code ttc.hash}, or null where it has no features
 * @param encoder its {@code ttc.encoder}, or null
 * @param score the engine's score of it
 * @param index its concrete index
 */
public record Candidate(String hash, String encoder, float score, String index) {
    private static final int LONGEST_HASH = 200;
    private static final int LONGEST_ENCODER = 1000;

    /** Takes a document whose names no frame can say as one without features: it must not spoil its window's frame. */
    public Candidate {
        if (!canBeSaid(hash, LONGEST_HASH) || !canBeSaid(encoder, LONGEST_ENCODER)) {
            hash = null;
            encoder = null;
        }
    }

    private static boolean canBeSaid(String name, int longest) {
        return name == null || !name.isEmpty() && name.length() <= longest;
    }
}

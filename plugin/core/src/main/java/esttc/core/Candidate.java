package esttc.core;

/**
 * One document of a first pass.
 *
 * @param hash its {@code ttc.hash}, or null where it has no features
 * @param encoder its {@code ttc.encoder}, or null
 * @param score the engine's score of it
 * @param index its concrete index
 */
public record Candidate(String hash, String encoder, float score, String index) {}

package esttc.core;

import java.util.List;

/** What a sidecar answers. */
public sealed interface Answer {
    /**
     * The window in its order.
     *
     * @param order places of the candidates, best first: a permutation
     * @param scores the score of each place of the order: not negative, never rising
     * @param methodScores the method's score of each candidate; NaN where it has none
     */
    record Ranking(int[] order, float[] scores, float[] methodScores) implements Answer {}

    /**
     * What has to be sent along.
     *
     * @param hashes content hashes
     * @param fields the fields that are wanted of each
     */
    record Missing(List<String> hashes, List<String> fields) implements Answer {}
}

package esttc.core;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;

/**
 * What the caller of a search over all shards asked for. The engine finds the whole window, and the page is cut from it
 * afterwards; documents after the window keep their order.
 *
 * @param from the page's first rank
 * @param size its ranks
 * @param windowSize ranks of the window
 * @param hidden fields that only we have asked for
 */
public record Page(int from, int size, int windowSize, List<String> hidden) {
    /** Ranks of a window that names none. */
    public static final int DEFAULT_WINDOW = 100;
    /** The largest window. */
    public static final int MOST = 10_000;

    private static final int DEFAULT_SIZE = 10;

    /**
     * A page.
     *
     * @param from as the request says it, or less than 0
     * @param size as the request says it, or less than 0
     * @param window ranks of a window
     * @param asked doc values that the caller asks for
     * @throws IllegalArgumentException it is too deep
     */
    public static Page of(int from, int size, int window, Collection<String> asked) {
        int first = Math.max(0, from);
        int ranks = size < 0 ? DEFAULT_SIZE : size;
        List<String> hidden = new ArrayList<>(List.of(HitFeatures.HASH, HitFeatures.ENCODER));
        hidden.removeAll(asked);
        Page page = new Page(first, ranks, window, hidden);
        if (page.end() > MOST) {
            throw new IllegalArgumentException(
                "[from] + [size] " + ((long) first + ranks) + " needs a window of more than [" + MOST + "] documents: ask for a page less deep"
            );
        }
        return page;
    }

    /** The ranks that the engine must find: the window, and the page if it ends after that. */
    public long end() {
        return Math.max(windowSize, (long) from + size);
    }

    /** How many of all ranks are rescored. */
    public <T> int windowOf(T[] all) {
        return Math.min(all.length, windowSize);
    }

    /** The page's own part of all ranks. */
    public <T> T[] of(T[] all) {
        return Arrays.copyOfRange(all, Math.min(from, all.length), Math.min(from + size, all.length));
    }
}

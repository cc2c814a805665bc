package esttc.core;

import java.util.Collection;
import java.util.Locale;

/** What messages say about names and values. */
public final class Names {
    private static final int SHOWN = 80;

    private Names() {}

    /** Names the nearest key that exists, or all of them where none is near. */
    public static String fix(String key, Collection<String> known) {
        String nearest = null;
        int least = Math.max(2, key.length() / 2);
        for (String name : known) {
            int distance = distance(key.toLowerCase(Locale.ROOT), name);
            if (distance < least) {
                least = distance;
                nearest = name;
            }
        }
        return nearest == null ? "known fields are " + known : "did you mean [" + nearest + "]?";
    }

    /** A value as it may stand in a message: short, on one line. */
    public static String shown(Object value) {
        String text = String.valueOf(value).replaceAll("\\p{Cntrl}", "?");
        return text.length() <= SHOWN ? text : text.substring(0, SHOWN - 3) + "...";
    }

    /** Levenshtein's distance, of strings that are cut at 100 characters. */
    private static int distance(String one, String other) {
        String a = one.substring(0, Math.min(100, one.length()));
        int[] row = new int[other.length() + 1];
        for (int j = 0; j < row.length; j++) {
            row[j] = j;
        }
        for (int i = 1; i <= a.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j < row.length; j++) {
                int changed = diagonal + (a.charAt(i - 1) == other.charAt(j - 1) ? 0 : 1);
                diagonal = row[j];
                row[j] = Math.min(changed, Math.min(row[j], row[j - 1]) + 1);
            }
        }
        return row[other.length()];
    }
}

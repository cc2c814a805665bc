package esttc.core;

/**
 * What came of a window.
 *
 * @param ranking its order, or null where the first pass stands
 * @param failure why it stands, or null
 */
public record Attempt(Answer.Ranking ranking, SidecarFailure failure) {
    /** Name of the response header that tells what came of a search; it stands twice where shards differ. */
    public static final String HEADER = "X-Ttc-Applied";

    /** The header's value. */
    public String header() {
        return failure == null ? "true" : "false; reason=" + failure.kind().key();
    }
}

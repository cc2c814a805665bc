package esttc.core;

/** The sidecar says that the search itself is wrong: its caller gets the sentence, with the status 400. */
public final class SidecarRefusal extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public SidecarRefusal(String reason) {
        super(reason, null, false, false);
    }
}

package esttc.core;

import java.io.IOException;
import java.util.List;
import java.util.Map;

/** Reads stored features where the documents are. */
@FunctionalInterface
public interface FeatureSource {
    /**
     * Reads blobs as they are stored.
     *
     * @param hashes content hashes of candidates
     * @param fields fields that hold blobs
     * @param budget told of every blob before the next one is read
     * @return for every hash the blobs that the document has, by field
     * @throws SidecarFailure the budget is spent
     */
    Map<String, Map<String, byte[]>> read(List<String> hashes, List<String> fields, Budget budget) throws IOException;

    /** Counts bytes against the bounds. */
    @FunctionalInterface
    interface Budget {
        /** Takes some bytes, or throws {@link SidecarFailure}. */
        void take(long bytes);
    }
}

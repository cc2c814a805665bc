package esttc.opensearch;

import esttc.core.Names;
import esttc.core.Section;
import esttc.core.SidecarFailure;
import esttc.core.SidecarRefusal;

import org.opensearch.common.unit.TimeValue;
import org.opensearch.ingest.AbstractBatchingProcessor;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.ingest.IngestDocument;
import org.opensearch.ingest.IngestDocumentWrapper;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.stream.Collectors;

/**
 * {@code ttc}: stamps documents as pending, so that nobody takes features of an earlier text for theirs; where it is told
 * to wait, has them encoded by the sidecar before they are indexed.
 */
final class IngestProcessor extends AbstractBatchingProcessor {
    static final String TYPE = "ttc";

    private static final String PENDING = "pending";
    private static final String FAIL = "fail";
    private static final int TOGETHER = 16; // documents of one request: about 3 MB of features
    private static final Set<String> METADATA = Arrays.stream(IngestDocument.Metadata.values())
        .map(IngestDocument.Metadata::getFieldName)
        .collect(Collectors.toUnmodifiableSet());

    private final Sidecar sidecar;
    private final boolean wait;
    private final boolean fails;
    private final TimeValue timeout;

    private IngestProcessor(String tag, String description, int batch, Sidecar sidecar, boolean wait, boolean fails, TimeValue timeout) {
        super(tag, description, batch);
        this.sidecar = sidecar;
        this.wait = wait;
        this.fails = fails;
        this.timeout = timeout;
    }

    /** Reads its configuration. */
    static final class Factory extends AbstractBatchingProcessor.Factory {
        private final Sidecar sidecar;

        Factory(Sidecar sidecar) {
            super(TYPE);
            this.sidecar = sidecar;
        }

        @Override
        protected AbstractBatchingProcessor newProcessor(String tag, String description, int batch, Map<String, Object> config) {
            boolean wait = ConfigurationUtils.readBooleanProperty(TYPE, tag, config, "wait", false);
            String onError = ConfigurationUtils.readStringProperty(TYPE, tag, config, "on_error", PENDING);
            if (!onError.equals(PENDING) && !onError.equals(FAIL)) {
                String problem = "must be one of [pending, fail], got " + Names.shown(onError);
                throw ConfigurationUtils.newConfigurationException(TYPE, tag, "on_error", problem);
            }
            String time = ConfigurationUtils.readStringProperty(TYPE, tag, config, "timeout", "30s");
            TimeValue timeout = TimeValue.parseTimeValue(time, "timeout");
            if (timeout.millis() <= 0) {
                throw ConfigurationUtils.newConfigurationException(TYPE, tag, "timeout", "must be longer than nothing");
            }
            return new IngestProcessor(tag, description, batch, sidecar, wait, onError.equals(FAIL), timeout);
        }
    }

    @Override
    public String getType() {
        return TYPE;
    }

    @Override
    public IngestDocument execute(IngestDocument document) {
        if (wait) {
            throw new UnsupportedOperationException("the sidecar is waited for elsewhere");
        }
        return pending(document);
    }

    @Override
    public void execute(IngestDocument document, BiConsumer<IngestDocument, Exception> handler) {
        subBatchExecute(List.of(new IngestDocumentWrapper(0, 0, document, null)), done -> {
            IngestDocumentWrapper one = done.get(0);
            handler.accept(one.getException() == null ? one.getIngestDocument() : null, one.getException());
        });
    }

    @Override
    protected void subBatchExecute(List<IngestDocumentWrapper> wrappers, Consumer<List<IngestDocumentWrapper>> handler) {
        wrappers.forEach(one -> pending(one.getIngestDocument()));
        if (!wait) {
            handler.accept(wrappers);
            return;
        }
        try {
            sidecar.executor().execute(() -> {
                encodeAll(wrappers);
                handler.accept(wrappers);
            });
        } catch (RuntimeException rejected) {
            failed(wrappers, "too many documents wait for the sidecar already");
            handler.accept(wrappers);
        }
    }

    private void encodeAll(List<IngestDocumentWrapper> wrappers) {
        Map<String, List<IngestDocumentWrapper>> byIndex = new TreeMap<>();
        for (IngestDocumentWrapper one : wrappers) {
            String index = String.valueOf(one.getIngestDocument().getSourceAndMetadata().get("_index"));
            byIndex.computeIfAbsent(index, ignored -> new ArrayList<>()).add(one);
        }
        byIndex.forEach((index, all) -> {
            for (int start = 0; start < all.size(); start += TOGETHER) {
                encode(index, all.subList(start, Math.min(all.size(), start + TOGETHER)));
            }
        });
    }

    private void encode(String index, List<IngestDocumentWrapper> some) {
        try {
            List<Map<String, Object>> sources = some.stream().map(one -> source(one.getIngestDocument())).toList();
            List<Map<String, Object>> encoded = sidecar.client().encode(index, sources, timeout.millis());
            for (int place = 0; place < some.size(); place++) {
                Map<String, Object> found = encoded.get(place);
                if (found.get("error") == null) {
                    some.get(place).getIngestDocument().setFieldValue(Section.NAME, found.get(Section.NAME));
                } else {
                    failed(List.of(some.get(place)), String.valueOf(found.get("error")));
                }
            }
        } catch (SidecarFailure | SidecarRefusal | IllegalArgumentException error) {
            failed(some, error.getMessage());
        }
    }

    private void failed(List<IngestDocumentWrapper> wrappers, String reason) {
        if (fails) {
            wrappers.forEach(one -> one.update(one.getIngestDocument(), new IllegalArgumentException("[ttc] " + reason)));
        }
    }

    /** Takes features of an earlier text away, and says that new ones are due. */
    private static IngestDocument pending(IngestDocument document) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("state", PENDING);
        document.setFieldValue(Section.NAME, state);
        return document;
    }

    private static Map<String, Object> source(IngestDocument document) {
        Map<String, Object> source = new LinkedHashMap<>(document.getSourceAndMetadata());
        source.keySet().removeAll(METADATA);
        source.remove(Section.NAME);
        return source;
    }
}

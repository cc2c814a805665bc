package esttc.opensearch;

import esttc.core.Ingest;
import esttc.core.Section;

import org.opensearch.ingest.AbstractProcessor;
import org.opensearch.ingest.ConfigurationUtils;
import org.opensearch.ingest.IngestDocument;
import org.opensearch.ingest.Processor;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.stream.Collectors;

/** The ingest processor {@code ttc}, as OpenSearch calls it. */
final class IngestProcessor extends AbstractProcessor {
    private static final Set<String> METADATA = Arrays.stream(IngestDocument.Metadata.values())
        .map(IngestDocument.Metadata::getFieldName)
        .collect(Collectors.toUnmodifiableSet());

    private final Ingest ingest;
    private final Sidecar sidecar;

    private IngestProcessor(String tag, String description, Ingest ingest, Sidecar sidecar) {
        super(tag, description);
        this.ingest = ingest;
        this.sidecar = sidecar;
    }

    static Processor.Factory factory(Sidecar sidecar) {
        return (factories, tag, description, config) -> {
            try {
                return new IngestProcessor(tag, description, Ingest.of(config, sidecar::queue), sidecar);
            } catch (IllegalArgumentException error) {
                throw ConfigurationUtils.newConfigurationException(Ingest.TYPE, tag, null, error.getMessage());
            }
        };
    }

    @Override
    public String getType() {
        return Ingest.TYPE;
    }

    @Override
    public IngestDocument execute(IngestDocument document) {
        ingest.stamp(new Incoming(document));
        return document;
    }

    @Override
    public void execute(IngestDocument document, BiConsumer<IngestDocument, Exception> handler) {
        if (!ingest.waits()) {
            handler.accept(execute(document), null);
            return;
        }
        ingest.encode(new Incoming(document), sidecar.inThisContext(refused -> {
            Exception error = refused == null ? null : new IllegalArgumentException("[ttc] " + refused);
            handler.accept(error == null ? document : null, error);
        }));
    }

    /** A document, as the core sees it. */
    private record Incoming(IngestDocument document) implements Ingest.Document {
        @Override
        public String index() {
            return String.valueOf(document.getSourceAndMetadata().get(IngestDocument.Metadata.INDEX.getFieldName()));
        }

        @Override
        public Map<String, Object> source() {
            Map<String, Object> source = new LinkedHashMap<>(document.getSourceAndMetadata());
            source.keySet().removeAll(METADATA);
            return source;
        }

        @Override
        public void put(Map<String, Object> ours) {
            document.setFieldValue(Section.NAME, ours);
        }

        @Override
        public void remove(String name) {
            document.getSourceAndMetadata().remove(name);
        }
    }
}

package esttc.elasticsearch;

import esttc.core.Ingest;
import esttc.core.Section;

import org.elasticsearch.ingest.AbstractProcessor;
import org.elasticsearch.ingest.ConfigurationUtils;
import org.elasticsearch.ingest.IngestDocument;
import org.elasticsearch.ingest.Processor;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BiConsumer;

/** The ingest processor {@code ttc}, as Elasticsearch calls it. */
final class IngestProcessor extends AbstractProcessor {
    private final Ingest ingest;
    private final Sidecar sidecar;

    private IngestProcessor(String tag, String description, Ingest ingest, Sidecar sidecar) {
        super(tag, description);
        this.ingest = ingest;
        this.sidecar = sidecar;
    }

    static Processor.Factory factory(Sidecar sidecar) {
        return (factories, tag, description, config, project) -> {
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
    public boolean isAsync() {
        return ingest.waits();
    }

    @Override
    public IngestDocument execute(IngestDocument document) {
        ingest.stamp(new Incoming(document));
        return document;
    }

    @Override
    public void execute(IngestDocument document, BiConsumer<IngestDocument, Exception> handler) {
        ingest.encode(new Incoming(document), sidecar.inThisContext(refused -> {
            Exception error = refused == null ? null : new IllegalArgumentException("[ttc] " + refused);
            handler.accept(error == null ? document : null, error);
        }));
    }

    /** A document, as the core sees it. */
    private record Incoming(IngestDocument document) implements Ingest.Document {
        @Override
        public String index() {
            return document.getMetadata().getIndex();
        }

        @Override
        public Map<String, Object> source() {
            return new LinkedHashMap<>(document.getSource());
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

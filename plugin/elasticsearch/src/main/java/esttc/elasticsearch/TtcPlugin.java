package esttc.elasticsearch;

import esttc.core.Ingest;
import esttc.core.Section;

import org.elasticsearch.action.support.MappedActionFilter;
import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.common.settings.Setting;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.common.util.concurrent.EsExecutors;
import org.elasticsearch.common.util.concurrent.EsExecutors.TaskTrackingConfig;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.ingest.Processor;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.IngestPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.plugins.SearchPlugin;
import org.elasticsearch.rest.RestHandler;
import org.elasticsearch.threadpool.ExecutorBuilder;
import org.elasticsearch.threadpool.FixedExecutorBuilder;

import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.Supplier;

/** Registers what the {@code ttc} section needs inside Elasticsearch. */
public final class TtcPlugin extends Plugin implements SearchPlugin, IngestPlugin, ActionPlugin {
    private static final int WAITING = 200;

    private final Sidecar sidecar;

    /** Called by Elasticsearch when the node starts; settings that cannot work stop it with a sentence. */
    public TtcPlugin(Settings settings, Path configFolder) {
        this.sidecar = new Sidecar(TtcSettings.read(settings, configFolder));
    }

    @Override
    public Collection<?> createComponents(PluginServices services) {
        sidecar.started(services.threadPool(), services.client());
        return List.of();
    }

    @Override
    public List<Setting<?>> getSettings() {
        return TtcSettings.ALL;
    }

    @Override
    public List<RescorerSpec<?>> getRescorers() {
        return List.of(
            new RescorerSpec<>(
                Section.NAME,
                in -> new TtcRescorerBuilder(in, sidecar),
                parser -> TtcRescorerBuilder.fromXContent(parser, sidecar)
            )
        );
    }

    @Override
    public List<SearchExtSpec<?>> getSearchExts() {
        return List.of(new SearchExtSpec<>(Section.NAME, TtcExt::new, TtcExt::fromXContent));
    }

    @Override
    public Collection<MappedActionFilter> getMappedActionFilters() {
        return List.of(new RescoreFilter(sidecar));
    }

    @Override
    public Map<String, Processor.Factory> getProcessors(Processor.Parameters parameters) {
        return Map.of(Ingest.TYPE, IngestProcessor.factory(sidecar));
    }

    @Override
    public List<ExecutorBuilder<?>> getExecutorBuilders(Settings settings) {
        int threads = 2 * EsExecutors.allocatedProcessors(settings);
        TaskTrackingConfig untracked = TaskTrackingConfig.DO_NOT_TRACK;
        return List.of(new FixedExecutorBuilder(settings, Sidecar.EXECUTOR, threads, WAITING, "thread_pool." + Sidecar.EXECUTOR, untracked));
    }

    @Override
    public Collection<RestHandler> getRestHandlers(
        RestHandlersServices services,
        Supplier<DiscoveryNodes> nodesInCluster,
        Predicate<NodeFeature> clusterSupportsFeature
    ) {
        return List.of(new RestStats(sidecar));
    }

    @Override
    public void close() {
        sidecar.close();
    }
}

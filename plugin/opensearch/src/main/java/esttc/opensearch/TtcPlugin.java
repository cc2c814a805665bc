package esttc.opensearch;

import esttc.core.Ingest;
import esttc.core.Section;

import org.opensearch.cluster.metadata.IndexNameExpressionResolver;
import org.opensearch.cluster.node.DiscoveryNodes;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.settings.ClusterSettings;
import org.opensearch.common.settings.IndexScopedSettings;
import org.opensearch.common.settings.Setting;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.settings.SettingsFilter;
import org.opensearch.common.util.concurrent.OpenSearchExecutors;
import org.opensearch.core.common.io.stream.NamedWriteableRegistry;
import org.opensearch.core.xcontent.NamedXContentRegistry;
import org.opensearch.env.Environment;
import org.opensearch.env.NodeEnvironment;
import org.opensearch.plugins.ActionPlugin;
import org.opensearch.plugins.IngestPlugin;
import org.opensearch.plugins.Plugin;
import org.opensearch.plugins.SearchPipelinePlugin;
import org.opensearch.plugins.SearchPlugin;
import org.opensearch.repositories.RepositoriesService;
import org.opensearch.rest.RestController;
import org.opensearch.rest.RestHandler;
import org.opensearch.script.ScriptService;
import org.opensearch.search.pipeline.Processor;
import org.opensearch.search.pipeline.SearchRequestProcessor;
import org.opensearch.search.pipeline.SearchResponseProcessor;
import org.opensearch.threadpool.ExecutorBuilder;
import org.opensearch.threadpool.FixedExecutorBuilder;
import org.opensearch.threadpool.ThreadPool;
import org.opensearch.transport.client.Client;
import org.opensearch.watcher.ResourceWatcherService;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** Registers what the {@code ttc} section needs inside OpenSearch. */
public final class TtcPlugin extends Plugin implements SearchPlugin, SearchPipelinePlugin, IngestPlugin, ActionPlugin {
    private static final int WAITING = 200;

    private final Sidecar sidecar;

    /** Called by OpenSearch when the node starts; settings that cannot work stop it with a sentence. */
    public TtcPlugin(Settings settings, java.nio.file.Path configFolder) {
        this.sidecar = new Sidecar(TtcSettings.read(settings, configFolder));
    }

    @Override
    public Collection<Object> createComponents(
        Client client,
        ClusterService clusterService,
        ThreadPool threadPool,
        ResourceWatcherService resourceWatcherService,
        ScriptService scriptService,
        NamedXContentRegistry xContentRegistry,
        Environment environment,
        NodeEnvironment nodeEnvironment,
        NamedWriteableRegistry namedWriteableRegistry,
        IndexNameExpressionResolver indexNameExpressionResolver,
        Supplier<RepositoriesService> repositoriesServiceSupplier
    ) {
        sidecar.started(threadPool, client);
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
        return List.of(new SearchExtSpec<>(Section.NAME, TtcExt::new, parser -> new TtcExt(parser.mapOrdered())));
    }

    @Override
    public Map<String, Processor.Factory<SearchRequestProcessor>> getRequestProcessors(Parameters parameters) {
        return Map.of(WindowProcessor.TYPE, WindowProcessor.factory());
    }

    @Override
    public Map<String, Processor.Factory<SearchResponseProcessor>> getResponseProcessors(Parameters parameters) {
        return Map.of(RescoreProcessor.TYPE, RescoreProcessor.factory(sidecar));
    }

    @Override
    public Map<String, org.opensearch.ingest.Processor.Factory> getProcessors(org.opensearch.ingest.Processor.Parameters parameters) {
        return Map.of(Ingest.TYPE, IngestProcessor.factory(sidecar));
    }

    @Override
    public List<ExecutorBuilder<?>> getExecutorBuilders(Settings settings) {
        int threads = 2 * OpenSearchExecutors.allocatedProcessors(settings);
        return List.of(new FixedExecutorBuilder(settings, Sidecar.EXECUTOR, threads, WAITING, "thread_pool." + Sidecar.EXECUTOR));
    }

    @Override
    public List<RestHandler> getRestHandlers(
        Settings settings,
        RestController restController,
        ClusterSettings clusterSettings,
        IndexScopedSettings indexScopedSettings,
        SettingsFilter settingsFilter,
        IndexNameExpressionResolver indexNameExpressionResolver,
        Supplier<DiscoveryNodes> nodesInCluster
    ) {
        return List.of(new RestStats(sidecar));
    }

    @Override
    public void close() {
        sidecar.close();
    }
}

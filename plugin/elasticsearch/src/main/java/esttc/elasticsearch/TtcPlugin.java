package esttc.elasticsearch;

import esttc.core.Section;

import org.elasticsearch.cluster.node.DiscoveryNodes;
import org.elasticsearch.common.settings.Setting;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.features.NodeFeature;
import org.elasticsearch.plugins.ActionPlugin;
import org.elasticsearch.plugins.Plugin;
import org.elasticsearch.plugins.SearchPlugin;
import org.elasticsearch.rest.RestHandler;

import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.function.Predicate;
import java.util.function.Supplier;

/** Registers what the {@code ttc} section needs inside Elasticsearch. */
public final class TtcPlugin extends Plugin implements SearchPlugin, ActionPlugin {
    private final Sidecar sidecar;

    /** Called by Elasticsearch when the node starts; settings that cannot work stop it with a sentence. */
    public TtcPlugin(Settings settings, Path configFolder) {
        this.sidecar = new Sidecar(TtcSettings.read(settings, configFolder));
    }

    @Override
    public Collection<?> createComponents(PluginServices services) {
        sidecar.started(services.threadPool().getThreadContext());
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

"""What one process of a gateway has in common with the others: the cache of features, and readiness."""

from enum import IntEnum

from es_ttc.common.shared_log import SharedLog, make_shared_log
from es_ttc.serving.features.cache import (
    FeatureCache,
    PrivateFeatureCache,
    SharedFeatureCache,
    private_share,
    shared_share,
)
from es_ttc.settings import GatewaySettings


class OnlyProcess:
    """The process of a gateway that has one."""

    count = 1
    """Number of processes of the gateway."""

    def feature_cache(self, settings: GatewaySettings) -> FeatureCache:
        """Return the cache of features."""
        return PrivateFeatureCache(settings.feature_cache_mb * 2**20)

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return True


class _State(IntEnum):
    STARTING = 0  # no connection is accepted yet
    LOADING = 1
    READY = 2


class WorkerProcess(OnlyProcess):
    """One of several processes, which share memory."""

    def __init__(self, log: SharedLog, count: int) -> None:
        self.count = count
        self._log = log
        log.join()

    def feature_cache(self, settings: GatewaySettings) -> FeatureCache:
        """Return the shared cache."""
        capacity = settings.feature_cache_mb * 2**20
        if not capacity:
            return PrivateFeatureCache(0)
        return SharedFeatureCache(self._log, private_share(capacity, self.count))

    @property
    def replaces_another(self) -> bool:
        """Whether other processes can rescore already, so that this one need not accept connections before it can."""
        return _State.READY in self._log.flags()

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""
        self._log.set_flag(_State.READY if ready else _State.LOADING)

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return _State.LOADING not in self._log.flags()


def memory_to_share(settings: GatewaySettings, count: int) -> SharedLog:
    """Return the memory that processes share; twice as many may have it while they are replaced."""
    return make_shared_log(shared_share(settings.feature_cache_mb * 2**20), processes=2 * count)

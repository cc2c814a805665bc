"""What one process of a gateway has in common with the others: the cache of features, and readiness."""

from typing import Protocol

from es_ttc.serving.features.cache import FeatureCache, PrivateFeatureCache
from es_ttc.settings import GatewaySettings


class GatewayProcess(Protocol):
    """One process of a gateway."""

    @property
    def count(self) -> int:
        """Number of processes of the gateway."""
        ...

    def feature_cache(self, settings: GatewaySettings) -> FeatureCache:
        """Return the cache of features."""
        ...

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""
        ...

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        ...


class OnlyProcess:
    """The process of a gateway that has one."""

    count = 1

    def feature_cache(self, settings: GatewaySettings) -> FeatureCache:
        """Return a cache in this process."""
        return PrivateFeatureCache(settings.feature_cache_mb * 2**20)

    def accepts(self, *, ready: bool) -> None:
        """Do nothing: there are no others."""

    def all_ready(self) -> bool:
        """Return True: there are no others."""
        return True

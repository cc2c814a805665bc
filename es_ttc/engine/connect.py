"""Connect to an engine of either product."""

from collections.abc import Mapping
from typing import Any

from es_ttc.engine.addresses import engine_addresses
from es_ttc.engine.client import ClientEngine, version_numbers
from es_ttc.engine.elasticsearch import ElasticsearchEngine
from es_ttc.engine.opensearch import OpenSearchEngine
from es_ttc.engine.plain import engine_info
from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError, EngineError
from es_ttc.settings import EngineSettings

OLDEST = {"opensearch": (2, 4), "elasticsearch": (8, 0)}


async def connect(settings: EngineSettings) -> Engine:
    """Detect the engine's product and return its adapter; the caller closes it.

    Raises:
        ConfigurationError: The address is not a URL, or the engine is too old.
        EngineError: It returned an error, or it is neither of the two products.
        EngineUnavailable: It cannot be reached.
    """
    info = await engine_info(settings)
    url = ",".join(address.url for address in engine_addresses(settings))
    return _adapter(info, url)(settings, info)


def _adapter(info: Any, url: str) -> type[ClientEngine]:
    version: Mapping[str, Any] = info.get("version", {}) if isinstance(info, Mapping) else {}
    if version.get("distribution") == "opensearch":
        adapter: type[ClientEngine] = OpenSearchEngine
    elif isinstance(info, Mapping) and info.get("tagline") == "You Know, for Search":
        adapter = ElasticsearchEngine
    else:
        raise EngineError(f"[{url}] is neither Elasticsearch nor OpenSearch: give the engine's own address")
    oldest = OLDEST[adapter.product]
    if version_numbers(info) < oldest:
        needed = ".".join(map(str, oldest))
        raise ConfigurationError(
            f"[{url}] runs {adapter.product} {version['number']}, which is too old: {needed} or newer is needed"
        )
    return adapter

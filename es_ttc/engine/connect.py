"""Connect to an engine of either product."""

from collections.abc import Mapping

from es_ttc.engine.addresses import engine_addresses
from es_ttc.engine.client import ClientEngine
from es_ttc.engine.elasticsearch import ElasticsearchEngine
from es_ttc.engine.opensearch import OpenSearchEngine
from es_ttc.engine.plain import engine_info
from es_ttc.engine.protocol import Engine
from es_ttc.engine.versions import Product, identify
from es_ttc.settings import EngineSettings

_ADAPTERS: Mapping[Product, type[ClientEngine]] = {"opensearch": OpenSearchEngine, "elasticsearch": ElasticsearchEngine}


async def connect(settings: EngineSettings) -> Engine:
    """Detect the engine's product and return its adapter; the caller closes it.

    Raises:
        ConfigurationError: The address is not a URL.
        UnsupportedEngine: The engine is too old.
        EngineError: It returned an error, or it is neither of the two products.
        EngineUnavailable: It cannot be reached.
    """
    info = await engine_info(settings)
    url = ",".join(address.url for address in engine_addresses(settings))
    version = identify(info, url)
    if (refusal := version.refusal(f"[{url}]")) is not None:
        raise refusal
    return _ADAPTERS[version.product](settings, info)

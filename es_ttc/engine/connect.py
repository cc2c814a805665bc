"""Connect to an engine of either product."""

from es_ttc.engine.addresses import engine_addresses
from es_ttc.engine.client import ClientEngine
from es_ttc.engine.plain import engine_info
from es_ttc.engine.protocol import Engine
from es_ttc.engine.versions import Product, identify, neither
from es_ttc.errors import ConfigurationError, EngineError, EngineUnavailable
from es_ttc.settings import EngineSettings


async def connect(settings: EngineSettings) -> Engine:
    """Detect the engine's product and return its adapter; the caller closes it.

    Raises:
        ConfigurationError: The address is not a URL, or the settings are not for this product.
        UnsupportedEngine: The engine is too old.
        EngineError: It returned an error, or it is neither of the two products.
        EngineUnavailable: It cannot be reached.
    """
    url = ",".join(address.url for address in engine_addresses(settings))
    try:
        info = await engine_info(settings)
    except EngineError as error:
        if (explained := _explained(error, url)) is error:
            raise
        raise explained from error
    version = identify(info, url)
    if (refusal := version.refusal(f"[{url}]")) is not None:
        raise refusal
    if settings.aws_region is not None and version.product == "elasticsearch":
        raise ConfigurationError(
            f"[aws_region] is for Amazon OpenSearch Service, and [{url}] runs {version}: leave it out, and set "
            "[api_key] or [username]"
        )
    return _adapter(version.product)(settings, info)


def _adapter(product: Product) -> type[ClientEngine]:
    """Import a product's adapter alone: its client takes most of the time of a short command."""
    if product == "opensearch":
        from es_ttc.engine.opensearch import OpenSearchEngine

        return OpenSearchEngine
    from es_ttc.engine.elasticsearch import ElasticsearchEngine

    return ElasticsearchEngine


def _explained(error: EngineError, url: str) -> EngineError:
    """Return the error for a refused ``GET /``: a missing right, or another program's answer."""
    status = error.upstream_status
    if status == 403:
        return EngineError(
            f"{error}; es-ttc reads the engine's version there: the user needs the cluster privilege [monitor] "
            "(Elasticsearch) or [cluster:monitor/main] (OpenSearch)",
            upstream_status=403,
            upstream=error.upstream,
        )
    if isinstance(error, EngineUnavailable) or status == 401 or (status or 0) >= 500:
        return error
    return neither(url, "with something that is not JSON" if status is None else f"with {status}")

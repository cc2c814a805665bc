"""Connect to an engine of either product."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from es_ttc.engine.addresses import NodePool, engine_addresses
from es_ttc.engine.aws import signer_of
from es_ttc.engine.exchange import HttpAnswer, Unreachable, answer_of, not_json, why_unconnected
from es_ttc.engine.http import TLS_ERRORS, open_session, request_timeout, service_headers
from es_ttc.engine.protocol import Engine
from es_ttc.engine.versions import Product, identify, neither
from es_ttc.errors import ConfigurationError, EngineError, EngineUnavailable
from es_ttc.settings import EngineSettings


async def connect(settings: EngineSettings) -> Engine:
    """Detect the engine's product and return its adapter; the caller closes it."""
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


@asynccontextmanager
async def connected(settings: EngineSettings) -> AsyncIterator[Engine]:
    """Yield an engine's adapter, and close it afterwards; see :func:`connect`."""
    engine = await connect(settings)
    try:
        yield engine
    finally:
        await engine.close()


def _adapter(product: Product) -> type[Engine]:
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


async def engine_info(settings: EngineSettings) -> Any:
    """Return the engine's response to ``GET /``."""
    nodes = NodePool(engine_addresses(settings))
    engine = "the engine at " + ",".join(address.url for address in nodes.addresses)
    headers = {"accept": "application/json", "accept-encoding": "identity", **service_headers(settings)}
    signer = signer_of(settings)
    seconds = settings.request_timeout
    timeout = request_timeout(settings)

    async def send() -> HttpAnswer:
        node = nodes.order()[0]
        url = node.target(b"/", b"")
        signed = {} if signer is None else await signer.headers("GET", url, None)
        try:
            async with session.get(url, headers=headers | signed, allow_redirects=False, timeout=timeout) as response:
                status, raw = response.status, await response.read()
        except TimeoutError as error:
            raise Unreachable(f"no answer within {seconds:g} seconds", may_repeat=False) from error
        except (aiohttp.ClientError, OSError) as error:
            nodes.failed(node)
            raise Unreachable(why_unconnected(error), may_repeat=not isinstance(error, TLS_ERRORS)) from error
        try:
            return HttpAnswer(status, orjson.loads(raw))
        except orjson.JSONDecodeError as error:
            if status < 300:
                raise not_json(engine, "GET", "/") from error
            return HttpAnswer(status, None)  # a proxy's page

    async with open_session(settings, connections=1) as session:
        answer = await answer_of(send, "GET", "/", engine=engine, nodes=len(nodes.addresses), seconds=seconds)
    return answer.body

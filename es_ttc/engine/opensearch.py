"""OpenSearch through its own client, opensearch-py."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import opensearchpy
from opensearchpy import AsyncOpenSearch
from opensearchpy._async.http_aiohttp import OpenSearchClientResponse

from es_ttc.common import exact_numbers
from es_ttc.engine.addresses import engine_addresses
from es_ttc.engine.aws import signer_of
from es_ttc.engine.exchange import HttpAnswer, Unreachable, why_unconnected
from es_ttc.engine.http import TLS_ERRORS, NodeConnector, connect_seconds, service_headers
from es_ttc.engine.protocol import CONNECTIONS, Detected, Engine, PointInTimeApi, exact_numbers_wanted, tls_options
from es_ttc.engine.versions import Product
from es_ttc.settings import EngineSettings

KNN_PLUGIN = "opensearch-knn"
MAX_DIMS = 16_000


class _Serializer(opensearchpy.JSONSerializer):
    """The client's serializer, which keeps numbers exact where requested."""

    def loads(self, s: str) -> Any:
        if not exact_numbers_wanted.get():
            return super().loads(s)
        try:
            return exact_numbers.loads(s, lone_surrogates=True)
        except ValueError as error:
            raise opensearchpy.SerializationError(s, error) from error


def _connection_class(seconds: float) -> type[opensearchpy.AIOHttpConnection]:
    """Return the client's connection with a time for connecting."""

    class Connection(opensearchpy.AIOHttpConnection):
        async def _create_aiohttp_session(self) -> None:
            self.loop = asyncio.get_running_loop()
            self.session = aiohttp.ClientSession(
                headers=self.headers,
                skip_auto_headers=("accept", "accept-encoding"),
                cookie_jar=aiohttp.DummyCookieJar(),
                response_class=OpenSearchClientResponse,
                connector=NodeConnector(seconds, limit=self._limit, ssl=self._ssl_context or False),
            )

        def _raise_warnings(self, warning_headers: Any) -> None:
            """Print none of the engine's warnings: they are about requests that the user did not write."""

    return Connection


class OpenSearchEngine(Engine):
    """The protocol on OpenSearch; see `es_ttc.engine.protocol.Engine`."""

    product: Product = "opensearch"
    point_in_time = PointInTimeApi(
        "_search/point_in_time", "pit_id", "/_search/point_in_time", lambda identifier: {"pit_id": [identifier]}
    )

    def __init__(self, settings: EngineSettings, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings, info)
        tls = tls_options(settings, self._urls)
        self._client = AsyncOpenSearch(
            self._urls,
            use_ssl=bool(tls),
            **tls,
            headers=service_headers(settings),
            maxsize=CONNECTIONS,
            connection_class=_connection_class(connect_seconds(settings)),
            max_retries=0,
            serializer=_Serializer(),
        )
        self._address = engine_addresses(settings)[0]
        self._signer = signer_of(settings)

    async def close(self) -> None:
        """Close connections."""
        pool = self._client.transport.connection_pool
        await self._client.close()
        for connection in getattr(pool, "orig_connections", ()):  # the client does not close connections that failed
            await connection.close()

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> HttpAnswer:
        headers = {"content-type": content_type}
        if self._signer is not None:  # for the URL that the client will send
            url = self._address.target(path.encode(), urlencode(params).encode())
            headers |= await self._signer.headers(method, url, body)
        try:
            answer = await self._client.transport.perform_request(
                method, path, params=dict(params), body=body, headers=headers, timeout=seconds
            )
        except opensearchpy.ConnectionTimeout as error:
            raise Unreachable(f"no answer within {seconds:g} seconds", may_repeat=False) from error
        except opensearchpy.ConnectionError as error:
            unsent = isinstance(error.info, aiohttp.ClientConnectorError)
            raise Unreachable(
                why_unconnected(error.info), may_repeat=not isinstance(error.info, TLS_ERRORS), unsent=unsent
            ) from error
        except opensearchpy.TransportError as error:
            return HttpAnswer(int(error.status_code), error.info)
        except opensearchpy.SerializationError as error:
            raise self._not_json(method, path) from error
        # The client returns a boolean for HEAD.
        return HttpAnswer(200 if answer is not False else 404, answer)

    async def _detect(self, nodes: Mapping[str, Any]) -> Detected:
        """Detect whether every data node has k-NN, whose Lucene engine needs no native libraries."""
        plugins = [{plugin["name"] for plugin in node.get("plugins", ())} for node in nodes.values()]
        vectors = all(KNN_PLUGIN in names for names in plugins)
        return Detected(
            vectors=vectors,
            knn_engine="lucene" if vectors else "",
            licence="apache-2.0",
            max_dims=MAX_DIMS,
        )

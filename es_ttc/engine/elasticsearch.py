"""Elasticsearch through its own client, elasticsearch-py.

Requests go through the client's transport with plain JSON media types: its generated methods send
``compatible-with=9``, which Elasticsearch 8 rejects.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
import elastic_transport
from elasticsearch import AsyncElasticsearch
from elasticsearch.serializer import OrjsonSerializer

from es_ttc.common import exact_numbers
from es_ttc.engine.exchange import HttpAnswer, Unreachable, why_unconnected
from es_ttc.engine.http import NodeConnector, connect_seconds, service_headers
from es_ttc.engine.protocol import (
    CONNECTIONS,
    JSON,
    Detected,
    Engine,
    PointInTimeApi,
    exact_numbers_wanted,
    tls_options,
)
from es_ttc.engine.versions import NOT_OFFERED, Product
from es_ttc.errors import EngineError
from es_ttc.settings import EngineSettings

MAX_DIMS = 4096


class _Serializer(OrjsonSerializer):
    """The client's serializer, which keeps lone surrogates, and numbers exact where requested."""

    def json_loads(self, data: bytes) -> Any:
        if exact_numbers_wanted.get():
            return exact_numbers.loads(data, lone_surrogates=True)
        try:
            return super().json_loads(data)
        except ValueError:
            return json.loads(data)


def _node_class(seconds: float) -> type[elastic_transport.AiohttpHttpNode]:
    """Return the client's node with a time for connecting."""

    class Node(elastic_transport.AiohttpHttpNode):
        def _create_aiohttp_session(self) -> None:
            self._loop = asyncio.get_running_loop()
            connector = NodeConnector(
                seconds, limit_per_host=self._connections_per_node, ssl=self._ssl_context or False
            )
            self.session = aiohttp.ClientSession(
                headers=self.headers,
                skip_auto_headers=("accept", "accept-encoding", "user-agent"),
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=connector,
            )

    return Node


class ElasticsearchEngine(Engine):
    """The protocol on Elasticsearch; see `es_ttc.engine.protocol.Engine`."""

    product: Product = "elasticsearch"
    point_in_time = PointInTimeApi("_pit", "id", "/_pit", lambda identifier: {"id": identifier})

    def __init__(self, settings: EngineSettings, info: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings, info)
        self._client = AsyncElasticsearch(
            self._urls,
            connections_per_node=CONNECTIONS,
            node_class=_node_class(connect_seconds(settings)),
            serializer=_Serializer(),
            **tls_options(settings, self._urls),
        )
        self._headers = service_headers(settings)

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> HttpAnswer:
        headers = {**self._headers, "accept": JSON}
        if body is not None:
            headers["content-type"] = content_type
        try:
            meta, answer = await self._client.transport.perform_request(
                method,
                f"{path}?{urlencode(params)}" if params else path,
                headers=headers,
                body=body,
                request_timeout=seconds,
                max_retries=0,
            )
        except elastic_transport.ConnectionTimeout as error:
            raise Unreachable(f"no answer within {seconds:g} seconds", may_repeat=False) from error
        except elastic_transport.TlsError as error:
            raise Unreachable(why_unconnected(error.message), may_repeat=False) from error
        except elastic_transport.SerializationError as error:
            raise self._not_json(method, path) from error
        except elastic_transport.TransportError as error:
            cause = error.__context__  # `errors` has those of the client's own earlier attempts only
            unsent = isinstance(cause, aiohttp.ClientConnectorError)
            raise Unreachable(
                why_unconnected(cause) if unsent else error.message, may_repeat=True, unsent=unsent
            ) from error
        return HttpAnswer(meta.status, answer)

    async def _detect(self, nodes: Mapping[str, Any]) -> Detected:
        del nodes
        return Detected(
            vectors=True,
            knn_engine="",
            licence=await self._licence(),
            max_dims=MAX_DIMS,
        )

    async def _licence(self) -> str:
        """Return the licence's type; "unknown" if the user may not read it or the build has none."""
        try:
            answer = await self.request("GET", "/_license")
        except EngineError as error:
            if error.upstream_status not in NOT_OFFERED | {400}:
                raise
            return "unknown"
        return str(answer["license"]["type"])

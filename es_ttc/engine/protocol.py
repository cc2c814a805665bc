"""An engine of either product: its capabilities, and the requests that both answer in the same way."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import orjson

from es_ttc.engine.addresses import engine_addresses
from es_ttc.engine.exchange import HttpAnswer, answer_of, not_json, reason_of, require_all_shards
from es_ttc.engine.versions import (
    NOT_OFFERED,
    SERVERLESS_MANAGED_SETTINGS,
    SERVERLESS_REFUSAL,
    SHARD_DOC_SORT,
    EngineVersion,
    Product,
    VersionedFeature,
    identify,
)
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.settings import EngineSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
CONNECTIONS = 32
PIT_KEEP_ALIVE = "5m"
DEFAULT_MAX_CONTENT_LENGTH = 100 * 2**20
exact_numbers_wanted: ContextVar[bool] = ContextVar(
    "exact", default=False
)  # whether the response's numbers must stay exact


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an engine: detected, never configured."""

    product: Product
    version: tuple[int, ...]
    # Whether it has a vector field and kNN search (OpenSearch's k-NN plugin, Elasticsearch's dense_vector)
    vectors: bool
    knn_engine: str  # for OpenSearch the k-NN engine to name in mappings, `lucene` or `faiss`; "" on Elasticsearch
    licence: str  # Elasticsearch's licence type (`basic`, `enterprise`...); "apache-2.0" on OpenSearch
    max_dims: int
    max_content_length: int  # maximum size of an HTTP body, in bytes
    nodes: int
    serverless: bool = False

    @property
    def engine(self) -> EngineVersion:
        """Product and version."""
        return EngineVersion(self.product, self.version, self.serverless)

    def has(self, feature: VersionedFeature) -> bool:
        """Return whether its version has a feature."""
        return self.engine.has(feature)


@dataclass(frozen=True, slots=True)
class BulkItem:
    """The engine's result for one action of a bulk."""

    position: int
    id: str
    status: int
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether the document was written."""
        return self.error is None

    @property
    def error_type(self) -> str:
        """The engine's type of the error, e.g. ``mapper_parsing_exception``; "" if there is none."""
        return (self.error or "").partition(":")[0]


class SearchApi(Protocol):
    """A search client: an :class:`Engine`, or the gateway with a caller's credentials."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109 - handed to the client, not awaited here
    ) -> Any:
        """Send one JSON request and return the decoded body."""

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Run one `_search`."""


@dataclass(frozen=True, slots=True)
class PointInTimeApi:
    """The product's API of points in time."""

    opened_at: str
    key: str
    closed_at: str
    closed_by: Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Detected:
    """The capabilities that each product reports in its own way; see Capabilities."""

    vectors: bool
    knn_engine: str
    licence: str
    max_dims: int


class Engine(ABC):
    """An async client of one engine: the product's own client sends; requests are built and responses parsed here.

    Every call has a timeout; calls that are safe to repeat are retried with backoff and jitter on connection errors and
    on 429, 502, 503, 504. Failures are EngineError (the engine returned an error) or EngineUnavailable (no response).

    Args:
        info: The engine's response to ``GET /``, if it was requested already.
    """

    product: Product
    point_in_time: PointInTimeApi

    def __init__(self, settings: EngineSettings, info: Mapping[str, Any] | None = None) -> None:
        self._urls = [address.url for address in engine_addresses(settings)]
        self._timeout = settings.request_timeout
        self._info = info
        self._capabilities: Capabilities | None = None
        self._detecting = asyncio.Lock()

    @property
    def url(self) -> str:
        """Address without credentials, for messages; several are separated by commas."""
        return ",".join(self._urls)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the engine at {self.url}"

    @abstractmethod
    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None, content_type: str, seconds: float
    ) -> HttpAnswer:
        """Send one request, once."""

    @abstractmethod
    async def _detect(self, nodes: Mapping[str, Any]) -> Detected:
        """Detect the capabilities that differ between the products."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""

    async def capabilities(self) -> Capabilities:
        """Detect the engine's capabilities; cached after the first call."""
        async with self._detecting:
            if self._capabilities is None:
                if self._info is None:
                    self._info = await self.request("GET", "/")
                version, nodes = identify(self._info, self.url), await self._nodes()
                detected = await self._detect(nodes)
                self._capabilities = Capabilities(
                    product=self.product,
                    version=version.numbers,
                    vectors=detected.vectors,
                    knn_engine=detected.knn_engine,
                    licence=detected.licence,
                    max_dims=detected.max_dims,
                    max_content_length=max_content_length(nodes),
                    nodes=data_nodes(nodes),
                    serverless=version.serverless,
                )
            return self._capabilities

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109 - handed to the client, not awaited here
    ) -> Any:
        """Send one JSON request and return the decoded body; repeat reads up to three times if the engine is busy."""
        payload = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        answer = await self._send(method, path, params or {}, payload, JSON, timeout or self._timeout)
        return answer.body

    async def exists(self, index: str) -> bool:
        """Return whether an index of this name exists."""
        path = f"/{path_of_one(index)}"
        answer = await self._send("HEAD", path, {}, None, JSON, self._timeout, accept=(404,))
        return answer.status == 200

    async def create_index(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index from settings, mappings and aliases, without settings that the service chooses itself."""
        path = f"/{path_of_one(name)}"
        try:
            await self.request("PUT", path, body=body)
        except EngineError as error:
            if error.upstream_status != 400 or SERVERLESS_REFUSAL not in str(error):
                raise
            await self.request("PUT", path, body=_without_managed_settings(body))

    async def delete_index(self, name: str) -> None:
        """Delete one index."""
        await self.request("DELETE", f"/{path_of_one(name)}")

    async def mapping(self, index: str) -> dict[str, Any]:
        """Return ``{concrete index: its mappings}``."""
        body = await self.request("GET", f"/{_path(index)}/_mapping")
        return {name: entry["mappings"] for name, entry in body.items()}

    async def put_meta(self, index: str, meta: Mapping[str, Any]) -> None:
        """Write an index's ``_meta``, and replace the present one."""
        await self.request("PUT", f"/{path_of_one(index)}/_mapping", body={"_meta": meta})

    async def bulk(self, index: str, lines: Sequence[bytes]) -> list[BulkItem]:
        """Send NDJSON lines (action, source, ...) as one `_bulk`, once, and return each action's result, in order."""
        body = b"\n".join(lines) + b"\n"
        params = {"filter_path": "items.*._id,items.*.status,items.*.error"}
        answer = await self._send("POST", f"/{_path(index)}/_bulk", params, body, NDJSON, self._timeout)
        return [_bulk_item(position, item) for position, item in enumerate(answer.body["items"])]

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Run one `_search`."""
        found: dict[str, Any] = await self.request("POST", f"/{_path(index)}/_search", params=params, body=body)
        return found

    async def hits(self, index: str, body: Mapping[str, Any], **params: str) -> list[dict[str, Any]]:
        """Return the hits of one `_search`, without a total; an answer from a part of the shards is an error."""
        answer = await self.search(index, {"track_total_hits": False, **body}, **params)
        require_all_shards(answer, index)
        found: list[dict[str, Any]] = answer["hits"]["hits"]
        return found

    async def pages(
        self,
        index: str,
        body: Mapping[str, Any],
        *filters: Mapping[str, Any],
        after: int = -1,
        upto: int | None = None,
        **params: str,
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield pages of hits in the order of writing, from one `_seq_no` to another; of one shard, by `preference`."""
        until = {} if upto is None else {"lte": upto}
        ordered = {**body, "sort": [{"_seq_no": "asc"}], "seq_no_primary_term": True}
        while upto is None or after < upto:
            query = {"bool": {"filter": [*filters, {"range": {"_seq_no": {"gt": after, **until}}}]}}
            found = await self.hits(index, {**ordered, "query": query}, **params)
            if not found:
                return
            yield found
            after = found[-1]["_seq_no"]

    async def exact_search(self, index: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run one `_search`; numbers that would change become :class:`es_ttc.common.exact_numbers.ExactNumber`."""
        token = exact_numbers_wanted.set(True)
        try:
            return await self.search(index, body)
        finally:
            exact_numbers_wanted.reset(token)

    async def scan(
        self, index: str, query: Mapping[str, Any], *, source: Sequence[str] | bool, batch: int = 1000
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield every hit of a query in a stable order through a point in time."""
        order = "_shard_doc" if await self._sorts_by_position() else "_id"
        pit = self.point_in_time
        opened = await self.request("POST", f"/{index}/{pit.opened_at}", params={"keep_alive": PIT_KEEP_ALIVE})
        identifier = str(opened[pit.key])
        body: dict[str, Any] = {
            "query": query,
            "_source": source,
            "size": batch,
            "sort": [{order: "asc"}],
            "track_total_hits": False,
        }
        try:
            while True:
                body["pit"] = {"id": identifier, "keep_alive": PIT_KEEP_ALIVE}
                page = await self.request("POST", "/_search", body=body)
                identifier = page["pit_id"]
                require_all_shards(page, index)
                hits = page["hits"]["hits"]
                for hit in hits:
                    yield hit
                if len(hits) < batch:
                    return
                body["search_after"] = hits[-1]["sort"]
        finally:
            try:
                await self.request("DELETE", pit.closed_at, body=pit.closed_by(identifier))
            except EngineError as error:
                logger.debug("a point in time is left to expire: %s", error)

    async def refresh(self, index: str) -> None:
        """Make all writes visible to search."""
        await self.request("POST", f"/{_path(index)}/_refresh")

    async def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of matching documents."""
        body = {"query": query} if query is not None else None
        answer = await self.request("POST", f"/{_path(index)}/_count", body=body)
        require_all_shards(answer, index)
        return int(answer["count"])

    async def _sorts_by_position(self) -> bool:
        """Return whether hits can be sorted by shard and position, without cost."""
        return (await self.capabilities()).has(SHARD_DOC_SORT)

    async def _nodes(self) -> Mapping[str, Any]:
        """Return the nodes' roles, limits and plugins; nothing if the user may not read them."""
        path = "nodes.*.roles,nodes.*.http.max_content_length_in_bytes,nodes.*.plugins.name"
        try:
            answer = await self.request("GET", "/_nodes/http,plugins", params={"filter_path": path})
        except EngineError as error:
            if error.upstream_status not in NOT_OFFERED:
                raise
            logger.warning("the engine does not show its nodes to this user: its usual limits are assumed")
            return {}
        nodes: Mapping[str, Any] = answer.get("nodes", {})
        return nodes

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: bytes | None,
        content_type: str,
        seconds: float,
        *,
        accept: Sequence[int] = (),
    ) -> HttpAnswer:
        """Send a request; see :func:`answer_of`."""
        return await answer_of(
            lambda: self._exchange(method, path, params, body, content_type, seconds),
            method,
            path,
            engine=self.name,
            nodes=len(self._urls),
            seconds=seconds,
            accept=accept,
        )

    def _not_json(self, method: str, path: str) -> EngineError:
        return not_json(self.name, method, path)


async def none_if_missing(request: Awaitable[T]) -> T | None:
    """Await a request and return its answer; None where the engine answers 404."""
    try:
        return await request
    except EngineError as error:
        if error.upstream_status == 404:
            return None
        raise


async def create_if_missing(engine: Engine, name: str, body: Mapping[str, Any]) -> None:
    """Create an index, unless it exists or another process creates it meanwhile."""
    if await engine.exists(name):
        return
    try:
        await engine.create_index(name, body)
    except EngineError as error:
        if error.upstream_status != 400 or not await engine.exists(name):
            raise


async def delete_if_there(engine: Engine, name: str) -> None:
    """Delete an index, if it still exists."""
    await none_if_missing(engine.delete_index(name))


def tls_options(settings: EngineSettings, urls: Sequence[str]) -> dict[str, Any]:
    """Return the certificate options for both clients; none if no address is https."""
    if not any(url.startswith("https:") for url in urls):
        return {}
    authority = {} if settings.ca_certs is None else {"ca_certs": str(settings.ca_certs)}
    return {"verify_certs": settings.verify_certs, "ssl_show_warn": False, **authority}


def _without_managed_settings(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a new index without the settings that Elasticsearch Serverless chooses itself."""
    settings = body.get("settings", {})
    index = {
        name: value for name, value in settings.get("index", {}).items() if name not in SERVERLESS_MANAGED_SETTINGS
    }
    return {**body, "settings": {**settings, "index": index}}


def data_nodes(nodes: Mapping[str, Any]) -> int:
    """Return the number of data nodes; 1 if none are known."""
    return sum(any(role.startswith("data") for role in node["roles"]) for node in nodes.values()) or 1


def max_content_length(nodes: Mapping[str, Any]) -> int:
    """Return the maximum size of an HTTP body, in bytes, over all nodes."""
    limits = [node["http"]["max_content_length_in_bytes"] for node in nodes.values() if "http" in node]
    return min(limits, default=DEFAULT_MAX_CONTENT_LENGTH)


def _path(index: str) -> str:
    return quote(index, safe=",*")


def path_of_one(name: str) -> str:
    """Return the name of one index, alias or data stream as part of a path."""
    if not name or name == "_all" or name.startswith("-") or any(sign in name for sign in "*?,"):
        raise InvalidRequest(f"[{name}] does not name one index: give the name of a single index")
    return quote(name, safe="")


def _bulk_item(position: int, item: Mapping[str, Any]) -> BulkItem:
    (outcome,) = item.values()
    error = outcome.get("error")
    return BulkItem(position, outcome["_id"], outcome["status"], reason_of(error) if error else None)

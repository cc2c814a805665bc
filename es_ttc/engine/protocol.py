"""The protocol of an engine of either product."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from es_ttc.engine.versions import EngineVersion, Product, VersionedFeature
from es_ttc.errors import EngineError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an engine: detected, never configured.

    Attributes:
        version: The version's numbers, e.g. ``(3, 5, 0)``.
        vectors: Whether it has a vector field and kNN search (OpenSearch's k-NN plugin, Elasticsearch's dense_vector).
        knn_engine: For OpenSearch the k-NN engine to name in mappings, ``lucene`` or ``faiss``; "" on Elasticsearch.
        licence: Elasticsearch's licence type (``basic``, ``enterprise``...); "apache-2.0" on OpenSearch.
        max_content_length: Maximum size of an HTTP body, in bytes.
        serverless: Whether it is Elasticsearch Serverless.
    """

    product: Product
    version: tuple[int, ...]
    vectors: bool
    knn_engine: str
    licence: str
    max_dims: int
    max_content_length: int
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


class Engine(Protocol):
    """An async client of one engine.

    Every call has a timeout; calls that are safe to repeat are retried with backoff and jitter on connection errors and
    on 429, 502, 503, 504. Failures are EngineError (the engine returned an error) or EngineUnavailable (no response).
    """

    @property
    def url(self) -> str:
        """Address without credentials, for messages."""

    @property
    def name(self) -> str:
        """Its name in messages; with its address only for who knows it."""

    @property
    def write_retry_seconds(self) -> float:
        """Seconds for which a temporarily rejected write is sent again."""

    async def capabilities(self) -> Capabilities:
        """Detect the engine's capabilities; cached after the first call."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109 - handed to the client, not awaited here
    ) -> Any:
        """Send one JSON request and return the decoded body, for APIs without a method here."""

    async def exists(self, index: str) -> bool:
        """Return whether an index of this name exists."""

    async def create_index(self, name: str, body: Mapping[str, Any]) -> None:
        """Create an index from settings, mappings and aliases."""

    async def delete_index(self, name: str) -> None:
        """Delete one index; wildcards are refused."""

    async def mapping(self, index: str) -> dict[str, Any]:
        """Return ``{concrete index: its mappings}``."""

    async def put_meta(self, index: str, meta: Mapping[str, Any]) -> None:
        """Write an index's ``_meta``, and replace the present one."""

    async def bulk(self, index: str, lines: Sequence[bytes]) -> list[BulkItem]:
        """Send one `_bulk` and return each action's result, in order; single items are not retried here.

        Args:
            lines: NDJSON lines without their newline: action, source, action, source...
        """

    async def search(self, index: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Run one `_search`."""

    async def exact_search(self, index: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run one `_search`; numbers that would change become :class:`es_ttc.common.exact_numbers.ExactNumber`."""

    def scan(
        self, index: str, query: Mapping[str, Any], *, source: Sequence[str] | bool, batch: int = 1000
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield every hit of a query in a stable order through a point in time."""

    async def refresh(self, index: str) -> None:
        """Make all writes visible to search."""

    async def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of matching documents."""

    async def close(self) -> None:
        """Close connections."""


async def delete_if_there(engine: Engine, name: str) -> None:
    """Delete an index, if it still exists."""
    try:
        await engine.delete_index(name)
    except EngineError as error:
        if error.upstream_status != 404:
            raise

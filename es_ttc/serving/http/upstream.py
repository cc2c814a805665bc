"""The engine as the gateway sees it: raw requests, nothing re-encoded, the caller's own credentials."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, unquote, urlencode

import aiohttp
from multidict import CIMultiDict

from es_ttc.engine.addresses import NodePool, engine_addresses
from es_ttc.engine.exchange import READ_POSTS
from es_ttc.engine.http import is_elasticsearch, open_session, request_timeout, service_headers
from es_ttc.engine.protocol import Product
from es_ttc.errors import EngineUnavailable
from es_ttc.serving.http.raw_request import ClientDisconnected, RawHeaders
from es_ttc.serving.logs import log
from es_ttc.settings import GatewaySettings

_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_FORWARDED = frozenset({b"host", b"expect"})
_OF_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type", b"accept", b"accept-encoding"})
_READ_AHEAD = 2**24  # bytes of an answer that we read as a whole: the default, 64 KiB, would stop the engine every time
_PASS_ON = 2**16
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_LOG_SECONDS = 5.0
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_READY = frozenset({502, 503, 504})
_VENDOR = b"application/vnd.elasticsearch+"


@dataclass(frozen=True, slots=True)
class Caller:
    """In whose name, and through which door, calls of our own are made.

    Attributes:
        headers: The caller's headers.
        indices: What he searches, as it stands in his path: an alias's filter and rights then hold for us as well.
            Empty where his path names nothing (a point in time, the whole cluster).
        params: The URL parameters that say what such a name stands for.
        pit: The point in time that he searches, as it stands in his body, or None: it names indices and a state of
            them, and both hold for us as well.
    """

    headers: RawHeaders
    indices: str = ""
    params: tuple[tuple[str, str], ...] = ()
    pit: Any = None

    def path(self, concrete: Sequence[str], api: str) -> bytes:
        """Return the path of a call.

        Concrete indices are named where the caller named nothing, or several that cover these by their names: others
        of them may lack the fields that a call is about. A single name may be an alias with a filter, and stays.
        """
        named = self.indices if not self._names_itself(concrete) else ""
        return f"/{named or quote(','.join(concrete), safe=',:')}/{api}".encode()

    def _names_itself(self, concrete: Sequence[str]) -> bool:
        """Whether a list or a pattern of the caller's covers indices by their own names, not by an alias."""
        parts = unquote(self.indices).split(",")
        several = len(parts) > 1 or "*" in parts[0]
        excludes = any(part.startswith("-") for part in parts)
        return several and not excludes and all(any(fnmatchcase(name, part) for part in parts) for name in concrete)

    def query_string(self, **params: str) -> bytes:
        """Return the parameters of a call."""
        return urlencode({"ignore_unavailable": "true", **dict(self.params), **params}).encode()


class Upstream:
    """Sends requests to the engine's nodes, and to nothing else. Use as an async context manager.

    Args:
        settings: The engine's addresses, certificates and timeouts.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._nodes = NodePool(engine_addresses(settings))
        self.url = ", ".join(address.url for address in self._nodes.addresses)
        self._settings = settings
        self._timeout = request_timeout(settings)
        self._session: aiohttp.ClientSession | None = None
        self._product: Product | None = None
        self._next_log = 0.0

    async def __aenter__(self) -> "Upstream":
        self._session = open_session(self._settings, connections=self._settings.max_concurrent_requests)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        raw_path: bytes,
        query_string: bytes,
        headers: RawHeaders,
        data: bytes | AsyncIterator[bytes] | None,
        *,
        ours: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and give its answer, not yet read.

        A node that cannot be reached is left alone for a while, and the next one is asked.

        Args:
            method: The HTTP method.
            raw_path: The path, percent-encoded.
            query_string: The query string, encoded.
            headers: Header names in lower case.
            data: The body, in one piece or as a stream.
            ours: A call of our own, which has a timeout and whose answer is read as a whole; a caller's own call lasts
                as long as he waits.

        Raises:
            EngineUnavailable: No node can be reached, or the one that was asked breaks off.
            InvalidRequest: The path cannot be sent to an engine.
        """
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        try:
            async with await self._answer(
                self._session, method, raw_path, query_string, headers, data, ours=ours
            ) as response:
                if is_elasticsearch(response.headers):
                    self._product = "elasticsearch"
                elif self._product is None and response.status < 500:  # not what stands before a dead engine
                    self._product = "opensearch"
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            self._log_silence(error)
            raise EngineUnavailable(
                "the engine did not answer in time" if late else "the engine gave no answer: the gateway's log says why"
            ) from error

    async def _answer(
        self,
        session: aiohttp.ClientSession,
        method: str,
        raw_path: bytes,
        query_string: bytes,
        headers: RawHeaders,
        data: bytes | AsyncIterator[bytes] | None,
        *,
        ours: bool,
    ) -> aiohttp.ClientResponse:
        """Return the answer of the first node that gives one.

        What changes nothing in the engine goes to another node when one breaks off or is not ready.
        """
        nodes = self._nodes.order()
        again = _changes_nothing(method, raw_path) and (data is None or isinstance(data, bytes))
        for node in nodes:
            last = node is nodes[-1]
            try:
                response = await session.request(
                    method,
                    node.target(raw_path, query_string),
                    headers=_as_text(headers),
                    data=data,
                    allow_redirects=False,
                    timeout=self._timeout if ours else None,
                    read_bufsize=_READ_AHEAD if ours else _PASS_ON,
                )
            except _NOT_CONNECTED:  # nothing of the request was sent
                self._nodes.failed(node)
                if last:
                    raise
            except aiohttp.ClientConnectionError:  # it may be the request's fault: the node is not left alone
                if last or not again:
                    raise
            else:
                if response.status not in _NOT_READY or last or not again:
                    self._nodes.answered(node)
                    return response
                response.close()
        raise AssertionError("the last node answers or raises")

    def _log_silence(self, error: Exception) -> None:
        """Log why the engine gives no answer: once in a while, for every request meets it."""
        now = time.monotonic()
        if now >= self._next_log and not isinstance(error.__cause__, ClientDisconnected):
            self._next_log = now + _LOG_SECONDS
            log.warning("engine gives no answer", engine=self.url, error=f"{type(error).__name__}: {error}")

    async def product(self) -> Product:
        """Return which of the two products the engine is.

        Raises:
            EngineUnavailable: It does not answer.
        """
        if self._product is None:
            async with self.send("GET", b"/", b"", self.service_headers(), None, ours=True) as response:
                await response.read()
        return self._product or "opensearch"

    def service_headers(self) -> RawHeaders:
        """Return the headers of calls that are made for no caller: readiness, the product."""
        headers = {"accept": "application/json", **service_headers(self._settings)}
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def reachable(self, seconds: float) -> bool:
        """Whether the engine answers within so many seconds, whatever it says."""
        try:
            async with (
                asyncio.timeout(seconds),
                self.send("GET", b"/", b"", self.service_headers(), None, ours=True) as response,
            ):
                return response.status < 500
        except (EngineUnavailable, TimeoutError):
            return False


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the headers that go past the next hop."""
    kept = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in kept if name == b"connection" for token in value.split(b",")}
    drop = _HOP_BY_HOP | named if named else _HOP_BY_HOP
    return [(name, value) for name, value in kept if name not in drop]


def forwarded(headers: RawHeaders) -> RawHeaders:
    """Return a caller's headers as they go to the engine."""
    return [(name, value) for name, value in end_to_end(headers) if name not in _NOT_FORWARDED]


def callers(headers: RawHeaders) -> RawHeaders:
    """Return what says who is calling (credentials, run-as, cookies, tracing) for a call of ours in his name."""
    return [(name, value) for name, value in forwarded(headers) if name not in _OF_THE_BODY]


def asks_vendor_type(headers: RawHeaders) -> bool:
    """Whether the caller is a client of Elasticsearch's that insists on its own media type and product header."""
    return any(name in (b"accept", b"content-type") and value.startswith(_VENDOR) for name, value in headers)


def plain_types(headers: RawHeaders) -> RawHeaders:
    """Replace Elasticsearch's own media types by the ones that OpenSearch knows."""
    return [(name, _plain(value) if name in (b"accept", b"content-type") else value) for name, value in headers]


def _plain(value: bytes) -> bytes:
    if not value.startswith(_VENDOR):
        return value
    subtype = value[len(_VENDOR) :].partition(b";")[0].strip()
    return b"application/" + subtype


def _changes_nothing(method: str, raw_path: bytes) -> bool:
    """Whether a request may be sent twice."""
    return method in _READS or (method == "POST" and raw_path.rpartition(b"/")[2].decode("latin-1") in READ_POSTS)


def _as_text(headers: RawHeaders) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), _text(value)) for name, value in headers)


def _text(value: bytes) -> str:
    try:
        return value.decode()  # the HTTP client writes UTF-8
    except UnicodeDecodeError:
        return value.decode("latin-1")

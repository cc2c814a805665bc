"""The engine as the gateway sees it: raw requests, nothing re-encoded, the caller's own credentials."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, unquote, urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from es_ttc.engine.http import base_url, is_elasticsearch, open_session, request_timeout, service_headers
from es_ttc.engine.protocol import Product
from es_ttc.errors import EngineUnavailable
from es_ttc.gateway.incoming import RawHeaders
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
    """Sends requests to the engine. Use as an async context manager.

    Args:
        settings: The engine's address, certificates and timeouts.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.url = base_url(settings)
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._product: Product | None = None

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

        Args:
            method: The HTTP method.
            raw_path: The path, percent-encoded.
            query_string: The query string, encoded.
            headers: Header names in lower case.
            data: The body, in one piece or as a stream.
            ours: A call of our own, which has a timeout and whose answer is read as a whole; a caller's own call lasts
                as long as he waits.

        Raises:
            EngineUnavailable: The engine cannot be reached, or breaks off.
        """
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        try:
            async with self._session.request(
                method,
                URL(self._target(raw_path, query_string), encoded=True),
                headers=_as_text(headers),
                data=data,
                allow_redirects=False,
                timeout=request_timeout(self._settings) if ours else None,
                read_bufsize=_READ_AHEAD if ours else _PASS_ON,
            ) as response:
                if is_elasticsearch(response.headers):
                    self._product = "elasticsearch"
                elif self._product is None and response.status < 500:  # not what stands before a dead engine
                    self._product = "opensearch"
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            why = "did not answer in time" if isinstance(error, TimeoutError) else f"gave no answer ({error})"
            raise EngineUnavailable(f"the engine at [{self.url}] {why}") from error

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

    def _target(self, raw_path: bytes, query_string: bytes) -> str:
        target = self.url + raw_path.decode("latin-1").replace("#", "%23")
        return f"{target}?{query_string.decode('latin-1')}" if query_string else target


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


def _as_text(headers: RawHeaders) -> CIMultiDict[str]:
    return CIMultiDict((name.decode("latin-1"), _text(value)) for name, value in headers)


def _text(value: bytes) -> str:
    try:
        return value.decode()  # the HTTP client writes UTF-8
    except UnicodeDecodeError:
        return value.decode("latin-1")

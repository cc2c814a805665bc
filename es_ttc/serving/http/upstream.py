"""The gateway's connection to the engine: requests and responses without re-encoding, with the caller's credentials."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
from multidict import CIMultiDict
from starlette.types import Send

from es_ttc.engine.addresses import NodePool, engine_addresses
from es_ttc.engine.exchange import READ_POSTS
from es_ttc.engine.http import NO_TIMEOUT, is_elasticsearch, open_session, request_timeout, service_headers
from es_ttc.engine.versions import EngineVersion, Product, identify
from es_ttc.errors import EngineError, EngineUnavailable
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import (
    PRODUCT_HEADER,
    Caller,
    RawHeaders,
    asks_vendor_type,
    callers,
    compatible_with,
    end_to_end,
    forwarded,
    older_types,
    plain_types,
)
from es_ttc.serving.http.raw_request import ClientDisconnected, RawRequest, end_answer, start_answer
from es_ttc.serving.http.signing import gateway_signer
from es_ttc.serving.logs import log
from es_ttc.serving.tracing import engine_call
from es_ttc.settings import GatewaySettings

_COMPATIBLE_HEADER = b"x-ttc-compatible-with"
"""Response header with the version to which the client's media types were translated."""
_READ_AHEAD = 2**24  # bytes of a response that is read whole; the default, 64 KiB, would pause the engine
_PASS_ON = 2**16
_LOG_SECONDS = 5.0
_VERSION_SECONDS = 30.0
"""Time after which the version is read again if the engine is too old, or does not return it."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NOT_READY = frozenset({502, 503, 504})
_OF_ANOTHER_BODY = frozenset({b"content-length", b"content-encoding"})

Data = bytes | AsyncIterator[bytes] | None


class Upstream:
    """Sends requests to the engine's nodes. Use as an async context manager.

    Attributes:
        settings: The gateway's settings.
        url: The engine's addresses without credentials, for messages.
        max_answer: Maximum size of an answer to a client's own search that is read as a whole, in bytes.
        signer: Signs requests for AWS; None if none is signed.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._nodes = NodePool(engine_addresses(settings))
        self.url = ", ".join(address.url for address in self._nodes.addresses)
        self.signer = gateway_signer(settings)
        self.settings = settings
        self.max_answer = settings.max_answer_mb * 2**20
        self._timeout = request_timeout(settings)
        self._session: aiohttp.ClientSession | None = None
        self._product: Product | None = None
        self._version: EngineVersion | None = None
        self._ask_version = 0.0
        self._next_log = 0.0

    async def __aenter__(self) -> "Upstream":
        most = self.settings.max_concurrent_requests
        self._session = open_session(self.settings, connections=most, given_up=self._nodes.given_up)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def send(
        self, method: str, raw_path: bytes, query_string: bytes, headers: RawHeaders, data: Data, *, ours: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and return its response, not yet read.

        A node that cannot be reached is not contacted for a while, and the next one is tried.
        """
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        if self._signs(headers) and isinstance(data, AsyncIterator):
            raise TypeError("only a whole body can be signed")
        try:
            with engine_call(method, raw_path, headers) as sent:
                answer = self._answer(self._session, method, raw_path, query_string, sent, data, ours=ours)
                async with await answer as response:
                    if is_elasticsearch(response.headers):
                        self._product = "elasticsearch"
                    elif self._product is None and response.status < 500:  # no load balancer before a dead engine
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
        data: Data,
        *,
        ours: bool,
    ) -> aiohttp.ClientResponse:
        """Return the response of the first node that sends one.

        A request that changes nothing in the engine is sent to another node if one fails or is not ready.
        """
        nodes = self._nodes.order()
        again = _changes_nothing(method, raw_path) and (data is None or isinstance(data, bytes))
        for node in nodes:
            last = node is nodes[-1]
            url, sent = node.target(raw_path, query_string), headers
            if self.signer is not None and not isinstance(data, AsyncIterator):
                url, sent = await self.signer.signed(method, url, headers, data)
            try:
                response = await session.request(
                    method,
                    url,
                    headers=CIMultiDict((name.decode("latin-1"), _text(value)) for name, value in sent),
                    data=data,
                    allow_redirects=False,
                    timeout=self._timeout if ours else NO_TIMEOUT,
                    read_bufsize=_READ_AHEAD if ours else _PASS_ON,
                )
            except aiohttp.ClientConnectorError:  # nothing of the request was sent
                self._nodes.failed(node)
                if last:
                    raise
            except aiohttp.ClientConnectionError:  # the request may be the cause: the node is still used
                if last or not again:
                    raise
            else:
                if response.status not in _NOT_READY or last or not again:
                    self._nodes.answered(node)
                    return response
                response.close()
        raise AssertionError("the last node answers or raises")

    def _log_silence(self, error: Exception) -> None:
        """Log why the engine does not answer, once per interval, because every request is affected."""
        now = time.monotonic()
        if now >= self._next_log and not isinstance(error.__cause__, ClientDisconnected):
            self._next_log = now + _LOG_SECONDS
            log.warning("engine gives no answer", engine=self.url, error=f"{type(error).__name__}: {error}")

    async def forward(
        self,
        incoming: RawRequest,
        send: Send,
        *,
        body: Data = None,
        rewritten: Data = None,
        mark: Callable[[int], RawHeaders] | None = None,
    ) -> int:
        """Pass a request on to the engine and its response back, both streamed, and return the response's status.

        The request's own ``body`` is streamed if it is not given; ``rewritten`` is another one, not compressed. If the
        request is signed, ``body`` is no stream.
        ``mark`` returns further headers of the response, when the engine's begins.
        """
        headers = forwarded(incoming.headers)
        if rewritten is not None:
            headers = [(name, value) for name, value in headers if name not in _OF_ANOTHER_BODY]
        headers, negotiated = await self.negotiated(headers)
        data = await self._data(incoming, headers, body, rewritten)
        path, query_string = incoming.raw_path, incoming.query_string
        async with self.send(incoming.method, path, query_string, headers, data) as response:
            marks = [] if mark is None else mark(response.status)
            await start_answer(send, response.status, [*end_to_end(response.raw_headers), *negotiated, *marks])
            chunk = await response.content.readany()
            while chunk and not response.content.at_eof():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await response.content.readany()
            await end_answer(incoming, send, chunk)
            return response.status

    async def _data(self, incoming: RawRequest, headers: RawHeaders, body: Data, rewritten: Data) -> Data:
        """Return the body to send, whole if the request is signed; None for none."""
        signed = self._signs(headers)
        if rewritten is not None:
            if signed and isinstance(rewritten, AsyncIterator):
                return b"".join([part async for part in rewritten])
            return rewritten
        if body is not None or not incoming.has_body:
            return body
        if incoming.whole_body is not None:
            return incoming.whole_body
        return await incoming.read() if signed else incoming.chunks()

    def _signs(self, headers: RawHeaders) -> bool:
        return self.signer is not None and self.signer.signs(headers)

    async def negotiated(self, headers: RawHeaders) -> tuple[RawHeaders, RawHeaders]:
        """Return headers with media types that the engine accepts, and those that the response gets for it."""
        if not asks_vendor_type(headers):
            return headers, []
        if await self.product() == "opensearch":
            return plain_types(headers), [PRODUCT_HEADER]
        version = await self.version(headers)
        if version is None or version.accepts_media_types_of(compatible_with(headers)):
            return headers, []
        major = version.numbers[0]
        return older_types(headers, major), [(_COMPATIBLE_HEADER, b"%d" % major)]

    async def product(self) -> Product:
        """Return which of the two products the engine is."""
        if self._product is None:
            await self._look(self.service_headers())
        return self._product or "opensearch"

    async def version(self, headers: RawHeaders) -> EngineVersion | None:
        """Return the engine's product and version, read with a caller's headers; None if the caller may not read it."""
        known = self._version is not None and not self._version.too_old
        if not known and time.monotonic() >= self._ask_version:
            await self._look([*callers(headers), (b"accept", b"application/json"), (b"accept-encoding", b"identity")])
            self._ask_version = time.monotonic() + _VERSION_SECONDS
        return self._version

    async def _look(self, headers: RawHeaders) -> int:
        """Read product and version from ``GET /``, as far as the engine tells them, and return the status."""
        async with self.send("GET", b"/", b"", headers, None, ours=True) as response:
            raw = await response.read()
            if response.status == 200:
                with suppress(EngineError, LookupError, ValueError):  # of another program, such as a proxy
                    self._version = identify(jsonio.loads_json(raw), self.url)
                    self._product = self._version.product
            return response.status

    @property
    def is_elasticsearch(self) -> bool:
        """Whether a response has shown that the engine is Elasticsearch."""
        return self._product == "elasticsearch"

    def service_headers(self) -> RawHeaders:
        """Return the headers of calls without a caller: readiness, the product."""
        if self.signer is not None:
            return [(b"accept", b"application/json"), (b"authorization", self.signer.mark)]
        headers = {"accept": "application/json", **service_headers(self.settings)}
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    def gateway_caller(self, indices: str = "") -> Caller:
        """Return the request context of calls with the gateway's own credentials."""
        return Caller(self.service_headers(), indices)

    async def reachable(self, seconds: float) -> bool:
        """Return whether the engine answers within a number of seconds; each node in turn has its share of them."""
        nodes = len(self._nodes.addresses)
        for _ in range(nodes):
            with suppress(EngineUnavailable, TimeoutError):
                async with asyncio.timeout(seconds / nodes):
                    return await self._look(self.service_headers()) < 500
        return False


def _changes_nothing(method: str, raw_path: bytes) -> bool:
    return method in _READS or (method == "POST" and raw_path.rpartition(b"/")[2].decode("latin-1") in READ_POSTS)


def _text(value: bytes) -> str:
    try:
        return value.decode()  # the HTTP client writes UTF-8
    except UnicodeDecodeError:
        return value.decode("latin-1")

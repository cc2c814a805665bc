"""One request as it came in: bytes, not yet decoded."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from copy import copy
from urllib.parse import parse_qsl, urlencode

from starlette.types import Receive, Scope

from es_ttc.errors import InvalidRequest, RequestTooLarge

_OF_THE_BODY = frozenset({b"accept-encoding", b"content-encoding", b"content-length", b"transfer-encoding"})
_OF_THE_BODYS_PLACE = frozenset({"source", "source_content_type"})

RawHeaders = list[tuple[bytes, bytes]]


class Disconnected(Exception):
    """The client went away before its request was complete."""


class Incoming:
    """A request's method, target and headers byte for byte, and its body as a stream.

    Attributes:
        method: The HTTP method.
        raw_path: The path as it came, still percent-encoded.
        target: The engine's path that answers it: the same one, unless another stands in (for a template, the search).
        query_string: The query string as it came, without its question mark.
        headers: Header names in lower case, with their values.
        gone: Whether the client has gone away.
        answered: Set once the answer is complete: the end of the connection then means nothing.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.target = self.raw_path
        self.query_string: bytes = scope["query_string"]
        self.headers: RawHeaders = scope["headers"]
        self.gone = False
        self.answered = False
        self._receive = receive
        self._body: bytes | None = None
        self._plain: tuple[bytes | None] | None = None
        self._complete = asyncio.Event()

    def header(self, name: bytes) -> str:
        """Return a header's first value, or an empty string."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")

    @property
    def segments(self) -> list[str]:
        """The path's parts that are not empty."""
        return [part for part in self.raw_path.decode("latin-1").split("/") if part]

    @property
    def has_body(self) -> bool:
        """Whether the headers announce a body."""
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in self.headers
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            Disconnected: The client went away in the middle.
        """
        while not self._complete.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise Disconnected
            if not message.get("more_body", False):
                self._complete.set()
            if message.get("body"):
                yield message["body"]

    async def read(self, limit: int) -> bytes:
        """Return the whole body; the same one however often it is asked for.

        Raises:
            RequestTooLarge: It is longer than ``limit`` bytes.
            Disconnected: The client went away in the middle.
        """
        if self._body is not None:
            return self._body
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            parts.append(chunk)
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._body

    async def plain(self, limit: int) -> bytes | None:
        """Return the whole body as it was before its Content-Encoding; see :func:`decompressed`."""
        if self._plain is None:
            self._plain = (decompressed(await self.read(limit), self.header(b"content-encoding"), limit),)
        return self._plain[0]

    def replace_body(self, body: bytes) -> None:
        """Put another body in the place of the one that has been read, plain and with a plain answer."""
        self._body, self._plain = body, (body,)
        kept = [pair for pair in self.headers if pair[0] not in _OF_THE_BODY]
        self.headers = [*kept, (b"content-length", str(len(body)).encode()), (b"accept-encoding", b"identity")]
        if not self.header(b"content-type"):
            self.headers.append((b"content-type", b"application/json"))
        params = parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
        told = [(name, value) for name, value in params if name not in _OF_THE_BODYS_PLACE]
        if len(told) < len(params):
            self.query_string = urlencode(told, errors="surrogateescape").encode("latin-1")

    def beside(self, raw_path: bytes, body: bytes) -> "Incoming":
        """Return a request with another path and body in the name of the same caller, for a part of this one."""
        part = copy(self)
        part.raw_path = part.target = raw_path
        part.replace_body(body)
        return part

    async def watch(self, owner: "asyncio.Task[None]") -> None:
        """Cancel the task that answers as soon as the client has gone away."""
        await self._complete.wait()
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.answered:
            self.gone = True
            owner.cancel()


def decompressed(body: bytes, encoding: str, limit: int) -> bytes | None:
    """Return a body as it was before its Content-Encoding, or None for an encoding that we leave to the engine.

    Raises:
        InvalidRequest: It is not what its Content-Encoding says.
        RequestTooLarge: It is longer than ``limit`` bytes once decompressed.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        return None
    inflate = zlib.decompressobj(wbits=31)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the body is not the gzip that its Content-Encoding says: {error}") from error
    if len(plain) > limit:
        raise _too_large(limit)
    if not inflate.eof:
        raise InvalidRequest("the body's gzip stream ends too early")
    return plain


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body is longer than {limit} bytes, the most that the gateway reads of a search (max_body_mb)"
    )

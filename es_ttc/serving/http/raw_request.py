"""One request as received, and the limits of what is read of it: bytes in memory, gzip, a search's size and depth."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from es_ttc.errors import InvalidRequest, RequestTooLarge, TooManyRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import PRODUCT_HEADER, RawHeaders, asks_vendor_type
from es_ttc.settings import GatewaySettings

MARKS = (b'"ttc"', b'"query_text"')
"""A body without any of these bytes has no `ttc` section."""

_OUR_KEY = re.compile(rb'"ttc"\s*:')
_PIECE = 2**20
_FED = 2**16  # bytes after a gzip member's end are copied: feed few at a time
_MEMBER = b"\x1f\x8b\x08"
MAX_MEMBERS = 1000
"""Gzip members of a body that is read; each takes time, however little it holds."""
_KEY_LENGTH = 64  # of a section's name with white space up to its colon
_MAX_DIGITS = 1000  # as in the engines: longer numbers take quadratic time to parse


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class BodyMemory:
    """Counts the bytes of all bodies that are in memory, answers to searches included; the limit may be None."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._used = 0

    def take(self, size: int, held: int) -> None:
        """Count more bytes of a request that holds some already; a negative number gives them back."""
        if self._limit is not None and size > 0 and self._used + size > self._limit:
            if held + size > self._limit:
                raise RequestTooLarge(
                    f"the request's body and the engine's answer are longer than {self._limit // 2**20} MiB together "
                    "(max_bodies_mb): ask for fewer documents, or for less of their [_source]"
                )
            raise TooManyRequests(
                f"bodies of requests and answers fill the {self._limit // 2**20} MiB that they may hold together "
                "(max_bodies_mb): try again"
            )
        self._used += size


class RawRequest:
    """A request's method, target and headers byte for byte, and its body as a stream."""

    def __init__(self, scope: Scope, receive: Receive, memory: BodyMemory | None = None) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query_string: bytes = scope["query_string"]
        self.headers: RawHeaders = scope["headers"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.gone = False
        self.answered = False
        self.whole_body: bytes | None = None  # if it was read completely
        self._receive = receive
        self._memory = memory or BodyMemory(None)
        self._held = 0
        self._ahead: list[bytes] = []
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

    @property
    def beginning(self) -> bytes:
        """The part of the body that was read so far."""
        return b"".join(self._ahead) if self.whole_body is None else self.whole_body

    async def read_ahead(self, size: int) -> bool:
        """Read a short body, or the beginning of a longer one, and return whether it is complete."""
        if self.whole_body is None:
            length = sum(map(len, self._ahead))
            while not self._complete.is_set() and length <= size:
                chunk = await self._next()
                self.count(len(chunk))
                length += len(chunk)
                self._ahead.append(chunk)
            if self._complete.is_set():
                self.whole_body = b"".join(self._ahead)
                self._ahead = []
        return self.whole_body is not None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, beginning with the part that was read ahead."""
        ahead, self._ahead = self._ahead, []
        for chunk in ahead:
            yield chunk
        while not self._complete.is_set():
            chunk = await self._next()
            if chunk:
                yield chunk

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientDisconnected
        if not message.get("more_body", False):
            self._complete.set()
        chunk: bytes = message.get("body", b"")
        return chunk

    async def read(self, limit: int) -> bytes:
        """Return the whole body; the same object at every call."""
        if not await self.read_ahead(limit) or len(body := self.whole_body or b"") > limit:
            raise _too_large(limit)
        return body

    def count(self, nbytes: int) -> None:
        """Count bytes that are kept in memory in addition to the body, such as the decompressed body."""
        self._memory.take(nbytes, self._held)
        self._held += nbytes

    def replayed(self) -> Receive:
        """Return a receive function that passes the body to another part of the application, from its beginning."""
        parts = list(self._ahead) if self.whole_body is None else [self.whole_body]

        async def receive() -> Message:
            if not parts:
                return await self._receive()
            body = parts.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(parts) or self.whole_body is None}

        return receive

    def forget(self) -> None:
        """Release the memory of the body after the response."""
        self._memory.take(-self._held, 0)
        self._held = 0

    async def watch(self, owner: "asyncio.Task[None]") -> None:
        """Cancel the handler's task when the client disconnects."""
        await self._complete.wait()
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.answered:
            self.gone = True
            owner.cancel()


async def start_answer(send: Send, status: int, headers: RawHeaders) -> None:
    """Send status and headers of a response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def end_answer(incoming: RawRequest, send: Send, body: bytes) -> None:
    """Send the last part of a response's body."""
    incoming.answered = True
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answer_json(
    incoming: RawRequest, send: Send, status: int, data: object, further: RawHeaders | None = None
) -> None:
    """Send a JSON response of the gateway."""
    body = jsonio.dumps(data)
    await start_answer(send, status, [*json_headers(incoming.headers, body), *(further or ())])
    await end_answer(incoming, send, b"" if incoming.method == "HEAD" else body)


def json_headers(incoming_headers: RawHeaders, body: bytes) -> RawHeaders:
    """Return the headers of a JSON response of the gateway."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return [*headers, PRODUCT_HEADER] if asks_vendor_type(incoming_headers) else headers


class RequestLimits:
    """Limits of searches with a `ttc` section; other requests are passed through."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.body_bytes = settings.max_ttc_body_mb * 2**20

    def too_long(self) -> RequestTooLarge:
        """Return the error for a body that is too long to have a section."""
        return RequestTooLarge(
            f"a search with a [ttc] section may be at most {self._settings.max_ttc_body_mb} MiB long: send less, or "
            "raise [max_ttc_body_mb]"
        )

    def admits(self, text: bytes) -> bool:
        """Return whether a body is to be parsed for a section; refuse one that names a section and exceeds a limit."""
        if not any(mark in text for mark in MARKS):
            return True
        try:
            self.check_text(text)
        except InvalidRequest:
            if names_section(text):
                raise
            return False
        return True

    def check_text(self, text: bytes) -> None:
        """Check a body before it is decoded, by counting bytes, also inside strings: the limits are approximate."""
        if len(text) > self.body_bytes:
            raise self.too_long()
        containers = text.count(b"{") + text.count(b"[")
        self._require(containers + text.count(b":"), "max_request_objects", "keys, objects and arrays")
        self._require(containers + text.count(b","), "max_request_values", "values")
        if len(text) > _MAX_DIGITS and jsonio.has_digits(text, _MAX_DIGITS + 1):
            raise InvalidRequest(
                f"a search with a [ttc] section holds a number of more than {_MAX_DIGITS:,} digits: round it"
            )

    def admits_items(self, text: bytes) -> bool:
        """Return whether the searches of an `_msearch` are to be parsed; refuse too many if one names a section."""
        count, most = text.count(b"\n") // 2, self._settings.max_msearch_items
        if count > most and names_section(text):
            self._require(count, "max_msearch_items", "items", request="an [_msearch]")
        return count <= most

    def check_query(self, texts: Iterable[str]) -> None:
        """Check the length of a query's texts."""
        length, most = sum(map(len, texts)), self._settings.max_query_chars
        if length > most:
            raise InvalidRequest(
                f"the query's text is {length:,} characters long, and at most {most:,} are encoded: give a "
                "shorter [ttc.query_text], or raise [max_query_chars]"
            )

    def check_section(self, section: Any) -> None:
        """Check the number of values in a section, most of them in `params`."""
        most = self._settings.max_section_values
        if count_values(section, most) > most:
            raise InvalidRequest(
                f"[ttc] may hold at most {most:,} values: give shorter lists in [ttc.params], or raise "
                "[max_section_values]"
            )

    def check_clauses(self, count: int, hook: str) -> None:
        """Check the number of `ttc` clauses."""
        self._require(count, "max_ttc_clauses", f"[{hook}] clauses")

    def decoded(self, text: bytes) -> Any:
        """Decode a body, or one line of an `_msearch` body, that has passed :meth:`check_text`."""
        data, depth = jsonio.loads_unique(text), self._settings.max_request_depth
        if text.count(b"{") + text.count(b"[") > depth and deeper_than(data, depth):
            raise InvalidRequest(
                f"a search with a [ttc] section is nested more than {depth} levels deep: write it flatter, or "
                "raise [max_request_depth]"
            )
        return data

    def _require(self, count: int, setting: str, what: str, *, request: str = "a search") -> None:
        most: int = getattr(self._settings, setting)
        if count > most:
            raise InvalidRequest(
                f"{request} with a [ttc] section may hold at most {most:,} {what}, this one holds {count:,}: send "
                f"less, or raise [{setting}]"
            )


DEFAULT_LIMITS = RequestLimits(GatewaySettings.model_construct())


def names_section(text: bytes) -> bool:
    """Return whether a body, or a piece of one, has the section's name as a key."""
    return _OUR_KEY.search(text) is not None


def decompressed(body: bytes, encoding: str, limit: int, limits: RequestLimits | None = None) -> bytes | None:
    """Return a body of at most `limit` bytes without its Content-Encoding; None if it is left to the engine.

    That is the case for an unknown encoding, for more than :data:`MAX_MEMBERS` gzip members, and for a body that is
    longer than a search with a section may be and has none. The body is decompressed in parts, so that no other thread
    waits for the whole.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        return None
    if not body or body.count(_MEMBER) > MAX_MEMBERS:
        return body or None
    pieces: list[bytes] = []
    length, before = 0, b""
    for piece in inflated(body):
        length += len(piece)
        if length > limit:
            raise _too_large(limit)
        if limits is None or length <= limits.body_bytes:
            pieces.append(piece)
        elif names_section(b"".join([*pieces, before, piece])):
            raise limits.too_long()
        else:
            pieces, before = [], piece[-_KEY_LENGTH:]
    return b"".join(pieces) if limits is None or length <= limits.body_bytes else None


def inflated(body: bytes) -> Iterator[bytes]:
    """Yield what a gzip body holds, in pieces; it may have several members, as in the engines."""
    if body.count(_MEMBER) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has more than {MAX_MEMBERS} gzip members: compress it in one piece")
    inflate, rest = zlib.decompressobj(wbits=31), memoryview(body)
    try:
        while rest:
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=31)
            fed = rest[:_FED]
            yield inflate.decompress(fed, _PIECE)
            rest = rest[len(fed) - len(inflate.unconsumed_tail) - len(inflate.unused_data) :]
    except zlib.error as error:
        raise InvalidRequest(f"the body is not the gzip that its Content-Encoding says: {error}") from error
    if not inflate.eof:
        raise InvalidRequest("the body's gzip stream ends too early")


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body is longer than {limit} bytes, the most that the gateway reads of a search (max_body_mb)"
    )


def deeper_than(data: Any, depth: int) -> bool:
    """Return whether objects and arrays are nested deeper than a number of levels."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
    return bool(level)


def count_values(data: Any, most: int) -> int:
    """Return the number of values in decoded JSON, without keys; counting ends beyond ``most``."""
    count, stack = 0, [data]
    while stack and count <= most:
        node = stack.pop()
        count += 1
        if isinstance(node, dict | list):
            if len(node) > most:
                return len(node)
            stack.extend(_children(node))
    return count


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node

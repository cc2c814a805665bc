"""One request as received, the memory that bodies take, and the gateway's own answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Receive, Scope, Send

from es_ttc.errors import RequestTooLarge, TooManyRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import PRODUCT_HEADER, RawHeaders, asks_vendor_type, callers, first_value

MAX_BODY = 100 * 2**20
"""Bytes of a body that is read as a whole; more than the engines accept of a search by default."""


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
                    "(max_buffered_mb): ask for fewer documents, or for less of their [_source]"
                )
            raise TooManyRequests(
                f"bodies of requests and answers fill the {self._limit // 2**20} MiB that they may hold together "
                "(max_buffered_mb): try again"
            )
        self._used += size


class RawRequest:
    """A request's method, target and headers byte for byte, and its body as a stream."""

    def __init__(self, scope: Scope, receive: Receive, memory: BodyMemory | None = None) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query_string: bytes = scope["query_string"]
        self.headers: RawHeaders = scope["headers"]
        self.is_tls = scope.get("scheme") == "https"
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
        return first_value(self.headers, name)

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

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body, of at most :data:`MAX_BODY` if no limit is given; the same object at every call."""
        limit = MAX_BODY if limit is None else limit
        if not await self.read_ahead(limit) or len(body := self.whole_body or b"") > limit:
            raise body_too_large(limit)
        return body

    def another(self, path: bytes, query_string: bytes, body: bytes, further: RawHeaders | None = None) -> "RawRequest":
        """Return a search of the same caller with another JSON body, and with further headers."""
        own = [*(further or ()), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        scope = {
            "method": "POST", "path": path.decode("latin-1"), "raw_path": path, "query_string": query_string,
            "headers": [*callers(self.headers), *own], "client": (self.client,),
        }  # fmt: skip
        made = RawRequest(scope, self._receive, self._memory)
        made.whole_body = body
        return made

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

    @asynccontextmanager
    async def ended_by_disconnect(self, after: float = 0.0) -> AsyncIterator[None]:
        """Cancel the work of the context when the client disconnects, and raise a ClientDisconnected.

        The client is watched from ``after`` seconds on, and when the body has been read: short work needs no task.
        """
        worker, watchers = asyncio.current_task(), list[asyncio.Task[None]]()

        async def watch() -> None:
            await self._complete.wait()
            message = await self._receive()
            if message["type"] == "http.disconnect" and not self.answered and worker is not None:
                self.gone = True
                worker.cancel()

        start = asyncio.get_running_loop().call_later(after, lambda: watchers.append(asyncio.create_task(watch())))
        try:
            yield
        except asyncio.CancelledError:
            if not self.gone or worker is None:
                raise
            worker.uncancel()
            raise ClientDisconnected from None
        finally:
            start.cancel()
            for watcher in watchers:
                watcher.cancel()


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


def body_too_large(limit: int) -> RequestTooLarge:
    """Return the error for a body that is longer than a number of bytes."""
    return RequestTooLarge(f"the body is longer than {limit} bytes, the most that the gateway reads: send less")


def answer_too_long(limit: int) -> RequestTooLarge:
    """Return the error for an answer of the engine that is longer than a number of bytes."""
    return RequestTooLarge(
        f"the engine's answer is larger than {limit // 2**20} MiB (max_answer_mb; 64 bytes more for each object or "
        "array): ask for fewer documents, or for less of their [_source]"
    )

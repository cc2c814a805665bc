"""One request as received: bytes, not decoded."""

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message, Receive, Scope

from es_ttc.serving.http.body_memory import BodyMemory, too_large
from es_ttc.serving.http.caller import ClientDisconnected, RawHeaders


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
        self._receive = receive
        self._memory = (memory or BodyMemory(None)).share()
        self._ahead: list[bytes] = []
        self._body: bytes | None = None
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
    def whole_body(self) -> bytes | None:
        """The body if it was read completely, else None."""
        return self._body

    @property
    def beginning(self) -> bytes:
        """The part of the body that was read so far."""
        return b"".join(self._ahead) if self._body is None else self._body

    async def read_ahead(self, size: int) -> bool:
        """Read a short body, or the beginning of a longer one, and return whether it is complete.

        Raises:
            ClientDisconnected: The client disconnected.
            TooManyRequests: Too many bytes of bodies are in memory.
        """
        if self._body is None:
            length = sum(map(len, self._ahead))
            while not self._complete.is_set() and length <= size:
                chunk = await self._next()
                length += len(chunk)
                self._ahead.append(chunk)
            if self._complete.is_set():
                self._body = b"".join(self._ahead)
                self._ahead = []
        return self._body is not None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, beginning with the part that was read ahead.

        Raises:
            ClientDisconnected: The client disconnected.
        """
        ahead, self._ahead = self._ahead, []
        for chunk in ahead:
            yield chunk
        while not self._complete.is_set():
            chunk = await self._next(held=False)
            if chunk:
                yield chunk

    async def _next(self, *, held: bool = True) -> bytes:
        """Return the next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientDisconnected
        if not message.get("more_body", False):
            self._complete.set()
        chunk: bytes = message.get("body", b"")
        if held:
            self._memory.take(len(chunk))
        return chunk

    async def read(self, limit: int) -> bytes:
        """Return the whole body; the same object at every call.

        Raises:
            RequestTooLarge: It is longer than ``limit`` bytes.
            ClientDisconnected: The client disconnected.
        """
        if not await self.read_ahead(limit):
            raise too_large(limit)
        body = self.whole_body or b""
        if len(body) > limit:
            raise too_large(limit)
        return body

    def count(self, nbytes: int) -> None:
        """Count bytes that are kept in memory in addition to the body, such as the decompressed body.

        Raises:
            TooManyRequests: Too many bytes of bodies are in memory.
        """
        self._memory.take(nbytes)

    def replayed(self) -> Receive:
        """Return a receive function that passes the body to another part of the application, from its beginning."""
        parts = [self._body] if self._body is not None else list(self._ahead)

        async def receive() -> Message:
            if not parts:
                return await self._receive()
            body = parts.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(parts) or self._body is None}

        return receive

    def forget(self) -> None:
        """Release the memory of the body after the response."""
        self._memory.give_back()

    async def watch(self, owner: "asyncio.Task[None]") -> None:
        """Cancel the handler's task when the client disconnects."""
        await self._complete.wait()
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.answered:
            self.gone = True
            owner.cancel()

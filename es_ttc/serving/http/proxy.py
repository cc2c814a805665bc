"""Pass-through: a request to the engine and its response, both streamed without re-encoding."""

from collections.abc import AsyncIterator, Callable

from starlette.types import Send

from es_ttc.serving.http.caller import RawHeaders, end_to_end, forwarded
from es_ttc.serving.http.media_types import PRODUCT_HEADER, MediaTypes, asks_vendor_type
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream

_OF_ANOTHER_BODY = frozenset({b"content-length", b"content-encoding"})


class PassThrough:
    """Forwards requests."""

    def __init__(self, upstream: Upstream, media_types: MediaTypes, *, max_body: int) -> None:
        self._upstream = upstream
        self._media_types = media_types
        self._max_body = max_body

    async def forward(
        self,
        incoming: RawRequest,
        send: Send,
        *,
        body: bytes | None = None,
        rewritten: bytes | AsyncIterator[bytes] | None = None,
        mark: Callable[[int], RawHeaders] | None = None,
    ) -> int:
        """Forward one request and return the status of the response.

        Args:
            incoming: The request.
            send: Sends the response.
            body: The request's own body, which is streamed if it was not read completely and is not given.
            rewritten: Another body in its place, of another length and not compressed.
            mark: Returns further headers of the response, when the engine's response begins.

        Raises:
            RequestTooLarge: The request is to be signed, and its body is too long.
        """
        headers = forwarded(incoming.headers)
        if rewritten is not None:
            headers = [(name, value) for name, value in headers if name not in _OF_ANOTHER_BODY]
        types = await self._media_types.negotiated(headers)
        data = await self._data(incoming, types.headers, body, rewritten)
        path, query_string = incoming.raw_path, incoming.query_string
        async with self._upstream.send(incoming.method, path, query_string, types.headers, data) as response:
            marks = [] if mark is None else mark(response.status)
            answered = [*end_to_end(response.raw_headers), *types.response_headers, *marks]
            await start_answer(send, response.status, answered)
            chunk = await response.content.readany()
            while chunk and not response.content.at_eof():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await response.content.readany()
            await end_answer(incoming, send, chunk)
            return response.status

    async def _data(
        self,
        incoming: RawRequest,
        headers: RawHeaders,
        body: bytes | None,
        rewritten: bytes | AsyncIterator[bytes] | None,
    ) -> bytes | AsyncIterator[bytes] | None:
        """Return the body to send, whole if the request is signed; None for none."""
        signer = self._upstream.signer
        signed = signer is not None and signer.signs(headers)
        if rewritten is not None:
            if signed and isinstance(rewritten, AsyncIterator):
                return b"".join([part async for part in rewritten])
            return rewritten
        if body is not None or not incoming.has_body:
            return body
        if incoming.whole_body is not None:
            return incoming.whole_body
        return await incoming.read(self._max_body) if signed else incoming.chunks()


def json_headers(incoming_headers: RawHeaders, body: bytes) -> RawHeaders:
    """Return the headers of a JSON response of the gateway."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return [*headers, PRODUCT_HEADER] if asks_vendor_type(incoming_headers) else headers


async def start_answer(send: Send, status: int, headers: RawHeaders) -> None:
    """Send status and headers of a response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def end_answer(incoming: RawRequest, send: Send, body: bytes) -> None:
    """Send the last part of a response's body."""
    incoming.answered = True
    await send({"type": "http.response.body", "body": body, "more_body": False})

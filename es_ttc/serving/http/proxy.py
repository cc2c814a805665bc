"""Pass-through: a request to the engine and its response, both streamed without re-encoding."""

from collections.abc import AsyncIterator, Callable

from starlette.types import Send

from es_ttc.serving.http.caller import RawHeaders, end_to_end, forwarded
from es_ttc.serving.http.media_types import PRODUCT_HEADER, asks_vendor_type, negotiated
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream

_OF_ANOTHER_BODY = frozenset({b"content-length", b"content-encoding"})


async def forward(
    upstream: Upstream,
    incoming: RawRequest,
    send: Send,
    *,
    body: bytes | None = None,
    rewritten: bytes | AsyncIterator[bytes] | None = None,
    mark: Callable[[], RawHeaders] = list,
) -> int:
    """Forward one request and return the status of the response.

    Args:
        upstream: The engine.
        incoming: The request.
        send: Sends the response.
        body: The request's own body, which is streamed if it was not read completely and is not given.
        rewritten: Another body in its place, of another length and not compressed.
        mark: Returns further headers of the response, when the engine's response begins.
    """
    headers = forwarded(incoming.headers)
    if rewritten is not None:
        headers = [(name, value) for name, value in headers if name not in _OF_ANOTHER_BODY]
    types = await negotiated(upstream, headers)
    data: bytes | AsyncIterator[bytes] | None = body if rewritten is None else rewritten
    if data is None and incoming.has_body:
        whole = incoming.whole_body
        data = incoming.chunks() if whole is None else whole
    path, query_string = incoming.raw_path, incoming.query_string
    async with upstream.send(incoming.method, path, query_string, types.headers, data) as response:
        await start_answer(send, response.status, [*end_to_end(response.raw_headers), *types.response_headers, *mark()])
        chunk = await response.content.readany()
        while chunk and not response.content.at_eof():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await response.content.readany()
        await end_answer(incoming, send, chunk)
        return response.status


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

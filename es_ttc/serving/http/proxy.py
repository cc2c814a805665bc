"""Pass-through: a request to the engine and its response, both streamed without re-encoding."""

from collections.abc import AsyncIterator

from starlette.types import Send

from es_ttc.serving.http.caller import RawHeaders, asks_vendor_type, end_to_end, forwarded, plain_types
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream

_PRODUCT_HEADER = (b"x-elastic-product", b"Elasticsearch")


async def forward(upstream: Upstream, incoming: RawRequest, send: Send, *, body: bytes | None = None) -> int:
    """Forward one request and return the status of the response.

    Args:
        upstream: The engine.
        incoming: The request.
        send: Sends the response.
        body: A body in place of the request's own, which is streamed if it was not read completely.
    """
    headers = forwarded(incoming.headers)
    vendor = asks_vendor_type(headers) and await upstream.product() == "opensearch"
    if vendor:
        headers = plain_types(headers)
    data: bytes | AsyncIterator[bytes] | None = body
    if body is None and incoming.has_body:
        whole = incoming.whole_body
        data = incoming.chunks() if whole is None else whole
    async with upstream.send(incoming.method, incoming.raw_path, incoming.query_string, headers, data) as response:
        await start_answer(send, response.status, answer_headers(end_to_end(response.raw_headers), vendor=vendor))
        chunk = await response.content.readany()
        while chunk and not response.content.at_eof():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await response.content.readany()
        await end_answer(incoming, send, chunk)
        return response.status


def answer_headers(headers: RawHeaders, *, vendor: bool) -> RawHeaders:
    """Return the headers of a response; Elasticsearch's clients require a product header from OpenSearch too."""
    return [*headers, _PRODUCT_HEADER] if vendor else headers


def json_headers(incoming_headers: RawHeaders, body: bytes) -> RawHeaders:
    """Return the headers of a JSON response of the gateway."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return answer_headers(headers, vendor=asks_vendor_type(incoming_headers))


async def start_answer(send: Send, status: int, headers: RawHeaders) -> None:
    """Send status and headers of a response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def end_answer(incoming: RawRequest, send: Send, body: bytes) -> None:
    """Send the last part of a response's body."""
    incoming.answered = True
    await send({"type": "http.response.body", "body": body, "more_body": False})

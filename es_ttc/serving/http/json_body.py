"""The JSON object in the body of a request to one of the gateway's own endpoints."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from es_ttc.errors import InvalidRequest
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.http.raw_request import RawRequest


async def json_object(request: Request, most: int) -> Mapping[str, Any]:
    """Return the object.

    Args:
        request: The request.
        most: Maximum size of the body, in bytes, also after decompression.

    Raises:
        InvalidRequest: The body is too long, encoded in an unknown way, or no JSON object.
    """
    incoming = RawRequest(request.scope, request.receive)
    body = await incoming.read(most)
    text = decompressed(body, incoming.header(b"content-encoding"), most)
    if text is None:
        raise InvalidRequest("the body's Content-Encoding is unknown: send gzip, or no encoding")
    return jsonio.loads_object(text, "the body")

"""The JSON object in the body of a request to one of the gateway's own endpoints."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.http.raw_request import RawRequest


class NotJson(EsTtcError):
    """The body of a request to one of the gateway's own endpoints is not marked as JSON."""

    status = 415
    type = "media_type_header_exception"


def require_json(incoming: RawRequest) -> None:
    """Refuse a body that is not marked as JSON: a web page may send others to any address without asking it.

    Raises:
        NotJson: It is not.
    """
    kind = incoming.header(b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise NotJson(f"Content-Type header [{kind}] is not supported: send application/json")


async def json_object(request: Request, most: int) -> Mapping[str, Any]:
    """Return the object.

    Args:
        request: The request.
        most: Maximum size of the body, in bytes, also after decompression.

    Raises:
        NotJson: The body is not marked as JSON.
        InvalidRequest: It is too long, encoded in an unknown way, or no JSON object.
    """
    incoming = RawRequest(request.scope, request.receive)
    require_json(incoming)
    body = await incoming.read(most)
    text = decompressed(body, incoming.header(b"content-encoding"), most)
    if text is None:
        raise InvalidRequest("the body's Content-Encoding is unknown: send gzip, or no encoding")
    return jsonio.loads_object(text, "the body")

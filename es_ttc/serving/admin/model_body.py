"""The body of a request to the gateway as a model server: authenticated, read within limits, decoded."""

from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr
from starlette.requests import Request

from es_ttc.errors import InvalidRequest, NotSignedIn
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.bearer import TOKEN_HEADER, carries
from es_ttc.serving.http.json_body import require_json
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.pool import Offload
from es_ttc.settings import GatewaySettings

MAX_CHARACTERS = 100_000
"""Of a text; far more than the encoder's token limit."""


def model_tokens(settings: GatewaySettings) -> tuple[SecretStr, ...]:
    """Return the tokens with which the gateway's models may be used; none if everyone may."""
    return tuple(token for token in (settings.model_token, settings.admin_token) if token is not None)


async def read_body(request: Request, tokens: Sequence[SecretStr], offload: Offload, max_body: int) -> dict[str, Any]:
    """Return the JSON object in a body.

    Args:
        request: The request.
        tokens: Tokens, one of which it must carry, as a bearer token or in `x-ttc-token`; none if it need not.
        offload: Decodes long bodies.
        max_body: Maximum size of a body, in bytes, also when it is decompressed.

    Raises:
        NotSignedIn: It carries none of them.
        NotJson: The body is not marked as JSON.
        InvalidRequest: The body is no JSON object, or its encoding is unknown.
        RequestTooLarge: It is too large.
    """
    given = (request.headers.get("authorization", ""), f"Bearer {request.headers.get(TOKEN_HEADER.decode(), '')}")
    if tokens and not any(carries(one, token) for one in given for token in tokens):
        raise NotSignedIn("the token is missing or wrong: send `Authorization: Bearer`, and the gateway's model_token")
    incoming = RawRequest(request.scope, request.receive)
    require_json(incoming)
    body = await incoming.read(max_body)
    encoding = incoming.header(b"content-encoding")
    text = await offload.run(len(body), decompressed, body, encoding, max_body)
    if text is None:
        raise InvalidRequest("the body's Content-Encoding is unknown: send gzip, or no encoding")
    found: dict[str, Any] = await offload.run(len(text), jsonio.loads_object, text, "the body")
    return found


def require_short(texts: list[str], field: str) -> None:
    """Refuse texts that are too long to be texts of documents.

    Raises:
        InvalidRequest: A text is too long.
    """
    for place, one in enumerate(texts):
        if len(one) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"[{field}] {place} has {len(one)} characters: send at most {MAX_CHARACTERS} of a text"
            )

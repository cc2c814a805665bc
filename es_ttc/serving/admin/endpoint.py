"""What the gateway's own endpoints share: tokens, JSON bodies and answers, limits, and the engine as the caller."""

import hmac
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response

from es_ttc.errors import (
    EngineError,
    EsTtcError,
    InvalidRequest,
    NotAllowed,
    NotSignedIn,
    TooManyRequests,
)
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.limits import decompressed
from es_ttc.serving.http.raw_request import ClientDisconnected, RawRequest, json_headers
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import GONE, Metrics
from es_ttc.serving.pool import Offload, work_of

T = TypeVar("T")

PREFIX = "/_ttc/"
PAGE = f"{PREFIX}ui"
"""Address of the playground, whose files stand below it."""
TOKEN_HEADER = b"x-ttc-token"
"""Carries the admin token of callers whose `Authorization` is for the engine."""


class NotJson(EsTtcError):
    """The body of a request to one of the gateway's own endpoints is not marked as JSON."""

    status = 415
    type = "media_type_header_exception"


class UnknownEndpoint(InvalidRequest):
    """There is no such endpoint below `/_ttc`."""

    status = 404


def carries(authorization: str, token: SecretStr) -> bool:
    """Return whether the value of an Authorization header is a bearer token; the comparison takes constant time."""
    expected = f"Bearer {token.get_secret_value()}".encode()
    return hmac.compare_digest(authorization.encode(errors="replace"), expected)


def carries_one_of(incoming: RawRequest, *tokens: SecretStr) -> bool:
    """Return whether a request carries one of some tokens, as its Authorization or in the header for them."""
    sent = (incoming.header(b"authorization"), f"Bearer {incoming.header(TOKEN_HEADER)}")
    return any(carries(one, token) for one in sent for token in tokens)


def received(request: Request) -> RawRequest:
    """Return a request of an endpoint as it was received."""
    return RawRequest(request.scope, request.receive)


async def json_object(incoming: RawRequest, most: int, offload: Offload) -> dict[str, Any]:
    """Return the JSON object in a body of at most some bytes, also when it is decompressed."""
    kind = incoming.header(b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise NotJson(f"Content-Type header [{kind}] is not supported: send application/json")
    body = await incoming.read(most)
    text = await offload.run(len(body), decompressed, body, incoming.header(b"content-encoding"), most)
    if text is None:
        raise InvalidRequest("the body's Content-Encoding is unknown: send gzip, or no encoding")
    return await offload.run(len(text), jsonio.loads_object, text, "the body")


def json_response(request: Request, data: object, status: int = 200) -> Response:
    """Return a JSON response of the gateway's own."""
    body = jsonio.dumps(data, pretty=jsonio.is_pretty(request.query_params))
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)


def not_found_response(request: Request, status: int = 404) -> Response:
    """Return the answer to a request below `/_ttc` that nothing answers."""
    problem = UnknownEndpoint(f"nothing answers {request.method} [{request.url.path}]: see /_ttc/")
    return json_response(request, {**problem.body(), "status": status}, status)


class EndpointRunner:
    """Runs the handlers of one kind of request: concurrency limit, errors in the engines' format, metrics, log."""

    def __init__(self, kind: str, metrics: Metrics, at_once: int) -> None:
        self._kind = kind
        self._metrics = metrics
        self._at_once = at_once
        self._in_flight = 0

    async def answered(self, work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
        """Return status and body of a response: the handler's result, or its error in the engines' format."""
        started = time.perf_counter()
        self._in_flight += 1
        try:
            if self._in_flight > self._at_once:
                work.close()
                raise TooManyRequests(f"{self._at_once} {self._kind} requests are being answered: try again")
            with work_of(self._kind):
                status, body = 200, await work
        except ClientDisconnected:
            status, body = GONE, {}
        except EsTtcError as error:
            status, body = error.status, error.body()
        except Exception as error:  # noqa: BLE001 - any backend may fail in any way: a 500 in the engines' shape
            log.error(f"{self._kind} failed", exc_info=error)
            unexpected = EsTtcError(f"the {self._kind} request failed: {type(error).__name__}: {error}")
            status, body = unexpected.status, unexpected.body()
        finally:
            self._in_flight -= 1
        seconds = time.perf_counter() - started
        self._metrics.answered(self._kind, status, seconds)
        log.info("answered", kind=self._kind, status=status, ms=round(seconds * 1000, 2))
        return status, body

    async def json(self, request: Request, work: Coroutine[Any, Any, Any]) -> Response:
        """Return a JSON response: the handler's result, or its error."""
        status, body = await self.answered(work)
        return json_response(request, body, status)


async def with_callers_errors(work: Coroutine[Any, Any, T]) -> T:
    """Return what work returns; the engine's refusal of the caller becomes an error of the same status."""
    try:
        return await work
    except EngineError as error:
        if error.upstream_status == NotSignedIn.status:
            raise NotSignedIn(str(error)) from error
        if error.upstream_status == NotAllowed.status:
            raise NotAllowed(str(error)) from error
        raise

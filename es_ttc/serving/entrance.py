"""The gateway's entrance: requests are admitted, and one to the engine is answered, logged and counted."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from es_ttc.engine.addresses import not_a_path
from es_ttc.errors import EsTtcError, NotSignedIn, TooManyRequests
from es_ttc.serving.admin.endpoint import PREFIX
from es_ttc.serving.admission import AdminToken, Admission
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import PRODUCT_HEADER, RawHeaders
from es_ttc.serving.http.raw_request import ClientDisconnected, RawRequest, answer_json
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import GONE
from es_ttc.serving.request.request import Api
from es_ttc.serving.request.response import Outcome
from es_ttc.serving.search import Searches
from es_ttc.serving.tracing import request_span
from es_ttc.serving.trial import Trial
from es_ttc.serving.writes.answers import WriteEncoding

_GONE = Outcome("passthrough", GONE)
_READ_AHEAD = 2**16  # bytes; a shorter request is sent to the engine when it is complete
_READ_AHEAD_BELOW_OURS = 2**20
_ERRORS = 400
_AUDITED = (401, 403, 429)
_UNWATCHED_SECONDS = 0.05  # most responses are complete by then, so no task watches the client
_UNFIT = re.compile(r"[^\x21-\x7e]+")
_MAX_ID_LENGTH = 128


class Entrance:
    """The gateway's ASGI application: admits requests, and answers those that are not for its `own` endpoints.

    Without an `admin` token these need none.
    """

    def __init__(
        self,
        gateway: Gateway,
        own: ASGIApp,
        searches: Searches | Trial,
        writes: WriteEncoding,
        admin: AdminToken | None,
    ) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._own = own
        self._searches = searches
        self._writes = writes
        self._room = InFlightLimit(settings.max_concurrent_requests)
        gateway.metrics.watch({"in_flight_requests": lambda: self._room.taken})
        self._admission = Admission(settings.allowed_hosts, settings.allowed_origins, admin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or handle the server's start and end."""
        if scope["type"] != "http":
            await self._own(scope, receive, send)
            return
        if scope["path"] == PREFIX.rstrip("/"):
            scope["path"] = PREFIX
        send, path = self._named(send), scope["path"]
        path = path if path == PREFIX else path.removesuffix("/")
        incoming = RawRequest(scope, receive, self._gateway.bodies)
        error = self._admission.refusal(path, incoming.headers)
        if error is not None:
            log.warning("refused", status=error.status, client=incoming.client, path=path, reason=str(error))
            challenge = [(b"www-authenticate", b'Bearer realm="es-ttc"')] if isinstance(error, NotSignedIn) else []
            await answer_json(incoming, send, error.status, error.body(), challenge)
            return
        scope["headers"] = incoming.headers = self._admission.without_token(path, incoming.headers)
        if not path.startswith(PREFIX):
            await self._answer_for_engine(incoming, send)
        elif incoming.method == "POST":
            await self._answer_post(incoming, scope, send)
        else:
            await self._own(scope, receive, send)

    async def _answer_post(self, incoming: RawRequest, scope: Scope, send: Send) -> None:
        """Answer a request below `/_ttc/` when its body is complete, so that a slow client occupies no handler."""
        try:
            await incoming.read_ahead(_READ_AHEAD_BELOW_OURS)
            await self._own(scope, incoming.replayed(), send)
        except ClientDisconnected:
            pass
        except TooManyRequests as error:
            await answer_json(incoming, send, error.status, error.body())
        finally:
            incoming.forget()

    async def _answer_for_engine(self, incoming: RawRequest, send: Send) -> None:
        """Answer one request to the engine, and log and count it."""
        answer = _TrackedResponse(send, request_id(incoming.header(b"x-request-id"), incoming.header(b"x-opaque-id")))
        started = time.perf_counter()
        with request_span(incoming.method, incoming.headers) as answered:
            try:
                outcome = await self._answered(incoming, answer)
            finally:
                incoming.forget()
            applied = outcome.applied and outcome.status < _ERRORS
            answered(outcome.kind, outcome.status, applied)
        seconds = time.perf_counter() - started
        self._gateway.metrics.answered(outcome.kind, outcome.status, seconds, applied=outcome.applied)
        if outcome.kind != "passthrough" or outcome.status >= 500:
            log.info(
                "answered",
                request_id=answer.id,
                method=incoming.method,
                path=incoming.raw_path.decode("latin-1"),
                kind=outcome.kind,
                status=outcome.status,
                applied=applied,
                ms=round(seconds * 1000, 2),
            )

    async def _answered(self, incoming: RawRequest, answer: "_TrackedResponse") -> Outcome:
        """Answer one request, with an error if it fails, and return its outcome."""
        try:
            async with incoming.ended_by_disconnect(after=_UNWATCHED_SECONDS):
                return await self._admitted(incoming, answer)
        except ClientDisconnected:
            return _GONE
        except EsTtcError as error:
            if incoming.gone:
                return _GONE
            return await _refused(incoming, answer, error)
        except Exception as error:  # noqa: BLE001 - a defect becomes a logged 500 in the engines' format
            log.exception("unexpected error", request_id=answer.id, path=incoming.raw_path.decode("latin-1"))
            unexpected = EsTtcError(f"unexpected {type(error).__name__} in the gateway (request {answer.id})")
            return await _refused(incoming, answer, unexpected)

    async def _admitted(self, incoming: RawRequest, answer: "_TrackedResponse") -> Outcome:
        """Answer one request that the limits admit."""
        _require_forwardable(incoming)
        whole = await incoming.read_ahead(_READ_AHEAD)  # the engine is not contacted before
        with self._room.taken_by(upload=not whole), self._gateway.callers.request(incoming):
            match _api(incoming):
                case [("_search" | "_msearch") as api]:
                    return await self._searches.answer(incoming, Api(api), answer, is_template=False)
                case [("_search" | "_msearch") as api, "template"]:
                    return await self._searches.answer(incoming, Api(api), answer, is_template=True)
                case _:
                    return await self._writes.answer(incoming, answer)

    @property
    def product_headers(self) -> RawHeaders:
        """The headers by which clients know the engine."""
        return [PRODUCT_HEADER] if self._gateway.upstream.is_elasticsearch else []

    def _named(self, send: Send) -> Send:
        """Return a send function that adds the engine's product header to the gateway's own responses."""

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start" and self.product_headers:
                headers = message.get("headers", [])
                if not any(name == PRODUCT_HEADER[0] for name, _ in headers):
                    message["headers"] = [*headers, *self.product_headers]
            await send(message)

        return named


class InFlightLimit:
    """Limits the number of concurrent requests.

    Uploads, whose bodies are passed on while they arrive, may use half of the limit, so that slow clients cannot block
    all others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most_uploads = max(1, limit // 2)
        self._uploads = 0
        self.taken = 0

    @contextmanager
    def taken_by(self, *, upload: bool) -> Iterator[None]:
        """Count a request while it is answered."""
        if self.taken >= self._limit:
            raise TooManyRequests(f"the gateway answers {self._limit} requests at a time: try again")
        if upload and self._uploads >= self._most_uploads:
            raise TooManyRequests(f"the gateway takes {self._most_uploads} long bodies at a time: try again")
        self.taken += 1
        self._uploads += upload
        try:
            yield
        finally:
            self.taken -= 1
            self._uploads -= upload


class _TrackedResponse:
    """Sends a response with the request's id, and records whether it has begun."""

    def __init__(self, send: Send, identifier: str) -> None:
        self.id = identifier
        self.begun = False
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [*message["headers"], (b"x-request-id", self.id.encode())]
        await self._send(message)


def _require_forwardable(incoming: RawRequest) -> None:
    """Refuse a request target that is neither a path nor `*`."""
    target = incoming.raw_path
    if target == b"*" and incoming.method == "OPTIONS":
        incoming.raw_path = b"/*"  # equivalent for the engines
    elif not target.startswith(b"/"):
        raise not_a_path(target)


async def _refused(incoming: RawRequest, answer: _TrackedResponse, error: EsTtcError) -> Outcome:
    if answer.begun:
        raise error  # only closing the connection can tell the client that the response is incomplete
    again = [(b"retry-after", b"%d" % error.retry_after)] if isinstance(error, TooManyRequests) else None
    if error.status in _AUDITED:
        reason = str(error)
        log.warning("refused", request_id=answer.id, status=error.status, client=incoming.client, reason=reason)
    await answer_json(incoming, answer, error.status, error.body(), again)
    api = _api(incoming)
    return Outcome(Api(api[0]).kind if api else "passthrough", error.status)


def _api(incoming: RawRequest) -> list[str]:
    """Return the path's segments from the name of a search interface on; empty for all other requests."""
    segments = incoming.segments
    own = next((place for place, part in enumerate(segments[:2]) if part in tuple(Api)), None)
    return [] if own is None or incoming.method not in ("GET", "POST") else segments[own:]


def request_id(*candidates: str) -> str:
    """Return the first id in the request, without unprintable characters and shortened, or a new one."""
    for candidate in filter(None, candidates):
        fit = _UNFIT.sub("", candidate)[:_MAX_ID_LENGTH]
        if fit:
            return fit
    return os.urandom(16).hex()

"""The application for all requests to the engine: limits, request ids, errors in the engines' format, metrics, logs."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from es_ttc.engine.addresses import not_a_path
from es_ttc.errors import EsTtcError, TooManyRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.body_memory import BodyMemory
from es_ttc.serving.http.caller import ClientDisconnected
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.proxy import end_answer, json_headers, start_answer
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.logs import log, request_id
from es_ttc.serving.metrics import GONE, Metrics
from es_ttc.serving.request.request import Api
from es_ttc.serving.request.response import Outcome
from es_ttc.serving.search import Searches
from es_ttc.serving.tracing import RequestSpan
from es_ttc.serving.writes.answers import WriteEncoding

_GONE = Outcome("passthrough", GONE)
_READ_AHEAD = 2**16  # bytes; a shorter request is sent to the engine when it is complete
_READ_AHEAD_BELOW_OURS = 2**20
_ERRORS = 400
_AUDITED = (401, 403, 429)
_UNWATCHED_SECONDS = 0.05  # most responses are complete by then, so no task watches the client


class EngineApp:
    """The ASGI application for all requests except those to the gateway's own endpoints."""

    def __init__(
        self,
        searches: Searches,
        writes: WriteEncoding,
        metrics: Metrics,
        memory: BodyMemory,
        limit: int,
        callers: CallerLimits,
    ) -> None:
        self._searches = searches
        self._writes = writes
        self._metrics = metrics
        self._memory = memory
        self._room = InFlightLimit(limit)
        self._callers = callers
        metrics.watch_requests(lambda: self._room.taken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        incoming = RawRequest(scope, receive, self._memory)
        answer = _TrackedResponse(send, request_id(incoming.header(b"x-request-id"), incoming.header(b"x-opaque-id")))
        started = time.perf_counter()
        with RequestSpan(incoming.method, incoming.headers) as traced:
            try:
                outcome = await self._answered(incoming, answer)
            finally:
                incoming.forget()
            applied = outcome.applied and outcome.status < _ERRORS
            traced.answered(outcome.kind, outcome.status, applied=applied)
        seconds = time.perf_counter() - started
        self._metrics.answered(outcome.kind, outcome.status, seconds, applied=outcome.applied)
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
        task = asyncio.current_task()
        watchers: list[asyncio.Task[None]] = []

        def watch() -> None:
            if task is not None:
                watchers.append(asyncio.create_task(incoming.watch(task)))

        later = asyncio.get_running_loop().call_later(_UNWATCHED_SECONDS, watch)
        try:
            require_forwardable(incoming)
            whole = await incoming.read_ahead(_READ_AHEAD)  # the engine is not contacted before
            with self._room.taken_by(upload=not whole), self._callers.request(incoming):
                return await self._dispatch(incoming, answer)
        except ClientDisconnected:
            return _GONE
        except asyncio.CancelledError:
            if not incoming.gone or task is None:
                raise
            task.uncancel()
            return _GONE
        except EsTtcError as error:
            if incoming.gone:
                return _GONE
            return await _refused(incoming, answer, error)
        except Exception as error:  # noqa: BLE001 - a defect becomes a logged 500 in the engines' format
            log.exception("unexpected error", request_id=answer.id, path=incoming.raw_path.decode("latin-1"))
            unexpected = EsTtcError(f"unexpected {type(error).__name__} in the gateway (request {answer.id})")
            return await _refused(incoming, answer, unexpected)
        finally:
            later.cancel()
            for watcher in watchers:
                watcher.cancel()

    async def _dispatch(self, incoming: RawRequest, answer: "_TrackedResponse") -> Outcome:
        match _api(incoming):
            case [("_search" | "_msearch") as api]:
                return await self._searches.answer(incoming, Api(api), answer, is_template=False)
            case [("_search" | "_msearch") as api, "template"]:
                return await self._searches.answer(incoming, Api(api), answer, is_template=True)
            case _:
                return await self._writes.answer(incoming, answer)


class PathDispatch:
    """Passes a request to the gateway's own endpoints or to the engine's application, without routing the latter."""

    def __init__(self, own: ASGIApp, engine: ASGIApp, memory: BodyMemory) -> None:
        self._own = own
        self._engine = engine
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or handle the server's start and end."""
        if scope["type"] == "http" and not scope["path"].startswith("/_ttc/"):
            await self._engine(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._answer_post(scope, receive, send)
        else:
            await self._own(scope, receive, send)

    async def _answer_post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request below `/_ttc/` when its body is complete, so that a slow client occupies no handler."""
        incoming = RawRequest(scope, receive, self._memory)
        try:
            await incoming.read_ahead(_READ_AHEAD_BELOW_OURS)
            await self._own(scope, incoming.replayed(), send)
        except ClientDisconnected:
            pass
        except TooManyRequests as error:
            body = jsonio.dumps(error.body())
            await start_answer(send, error.status, json_headers(incoming.headers, body))
            await end_answer(incoming, send, body)
        finally:
            incoming.forget()


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
        """Count a request while it is answered.

        Raises:
            TooManyRequests: The limit is reached.
        """
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


def require_forwardable(incoming: RawRequest) -> None:
    """Raise an error for a request target that is neither a path nor `*`.

    Raises:
        InvalidRequest: The target is neither.
    """
    target = incoming.raw_path
    if target == b"*" and incoming.method == "OPTIONS":
        incoming.raw_path = b"/*"  # equivalent for the engines
    elif not target.startswith(b"/"):
        raise not_a_path(target)


async def _refused(incoming: RawRequest, answer: _TrackedResponse, error: EsTtcError) -> Outcome:
    kind = _kind(incoming)
    if answer.begun:
        raise error  # only closing the connection can tell the client that the response is incomplete
    body = jsonio.dumps(error.body())
    headers = json_headers(incoming.headers, body)
    if isinstance(error, TooManyRequests):
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status in _AUDITED:
        reason = str(error)
        log.warning("refused", request_id=answer.id, status=error.status, client=incoming.client, reason=reason)
    await start_answer(answer, error.status, headers)
    await end_answer(incoming, answer, b"" if incoming.method == "HEAD" else body)
    return Outcome(kind, error.status)


def _api(incoming: RawRequest) -> list[str]:
    """Return the path's segments from the name of a search interface on; empty for all other requests."""
    segments = incoming.segments
    own = next((place for place, part in enumerate(segments[:2]) if part in tuple(Api)), None)
    return [] if own is None or incoming.method not in ("GET", "POST") else segments[own:]


def _kind(incoming: RawRequest) -> str:
    api = _api(incoming)
    return Api(api[0]).kind if api else "passthrough"

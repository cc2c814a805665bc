"""Where every request for the engine comes in: limits, request ids, errors in the engine's shape, metrics, logs."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive, Scope, Send

from es_ttc.engine.addresses import not_a_path
from es_ttc.errors import EsTtcError, TooManyRequests
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.body_memory import BodyMemory
from es_ttc.serving.http.caller import ClientDisconnected
from es_ttc.serving.http.proxy import end_answer, forward, json_headers, start_answer
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.logs import log, request_id
from es_ttc.serving.metrics import GONE, Metrics
from es_ttc.serving.search.pipeline import SearchPipeline
from es_ttc.serving.search.request import Api
from es_ttc.serving.search.response import Outcome

_GONE = Outcome("passthrough", GONE)
_READ_AHEAD = 2**16  # bytes; most requests are shorter, and the engine hears of them only when all is there
_UNWATCHED_SECONDS = 0.05  # most answers are complete by then, and a task to watch the client would be for nothing


class EngineApp:
    """The ASGI application for everything that is not the gateway's own.

    Args:
        upstream: The engine.
        searches: Answers `_search`, `_msearch` and their templates.
        metrics: Told about every request.
        memory: Counts the bodies of requests.
        limit: Requests in flight before 429 is answered.
    """

    def __init__(
        self, upstream: Upstream, searches: SearchPipeline, metrics: Metrics, memory: BodyMemory, limit: int
    ) -> None:
        self._upstream = upstream
        self._searches = searches
        self._metrics = metrics
        self._memory = memory
        self._room = InFlightLimit(limit)
        metrics.in_flight.set_function(lambda: self._room.taken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        incoming = RawRequest(scope, receive, self._memory)
        answer = _TrackedResponse(send, request_id(incoming.header(b"x-request-id"), incoming.header(b"x-opaque-id")))
        started = time.perf_counter()
        try:
            outcome = await self._answered(incoming, answer)
        finally:
            incoming.forget()
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
                applied=outcome.applied,
                ms=round(seconds * 1000, 2),
            )

    async def _answered(self, incoming: RawRequest, answer: "_TrackedResponse") -> Outcome:
        """Answer, whatever happens, and return how it ended."""
        task = asyncio.current_task()
        watchers: list[asyncio.Task[None]] = []

        def watch() -> None:
            if task is not None:
                watchers.append(asyncio.create_task(incoming.watch(task)))

        later = asyncio.get_running_loop().call_later(_UNWATCHED_SECONDS, watch)
        try:
            require_forwardable(incoming)
            whole = await incoming.read_ahead(_READ_AHEAD)  # until then it costs the engine nothing
            with self._room.taken_by(upload=not whole):
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
        except Exception as error:  # noqa: BLE001 - a defect of ours is a 500 in the engine's shape, and in the log
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
                return Outcome("passthrough", await forward(self._upstream, incoming, answer))


class InFlightLimit:
    """How many requests are in flight towards the engine.

    Uploads, whose bodies are still arriving while they are passed on, may take half of the room, so that slow clients
    cannot keep everybody else out.

    Args:
        limit: Most of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most_uploads = max(1, limit // 2)
        self._uploads = 0
        self.taken = 0

    @contextmanager
    def taken_by(self, *, upload: bool) -> Iterator[None]:
        """Take a place while a request is answered.

        Raises:
            TooManyRequests: There is none.
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
    """Sends an answer with the request's id, and knows whether it has begun."""

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
    """Refuse a request target that is neither a path nor `*`.

    Raises:
        InvalidRequest: It is something else.
    """
    target = incoming.raw_path
    if target == b"*" and incoming.method == "OPTIONS":
        incoming.raw_path = b"/*"  # to the engines the same
    elif not target.startswith(b"/"):
        raise not_a_path(target)


def error_body(error: EsTtcError) -> bytes:
    """Return an error in the engines' own shape."""
    return jsonio.dumps(error.body())


async def _refused(incoming: RawRequest, answer: _TrackedResponse, error: EsTtcError) -> Outcome:
    kind = _kind(incoming)
    if answer.begun:
        raise error  # nothing but closing the connection tells the client that the rest is missing
    body = error_body(error)
    await start_answer(answer, error.status, json_headers(incoming.headers, body))
    await end_answer(incoming, answer, b"" if incoming.method == "HEAD" else body)
    return Outcome(kind, error.status)


def _api(incoming: RawRequest) -> list[str]:
    """Return the parts of the path that name a search interface, behind the indices; none for everything else."""
    segments = incoming.segments
    own = next((place for place, part in enumerate(segments[:2]) if part in tuple(Api)), None)
    return [] if own is None or incoming.method not in ("GET", "POST") else segments[own:]


def _kind(incoming: RawRequest) -> str:
    api = _api(incoming)
    return Api(api[0]).kind if api else "passthrough"

"""`/_ttc/jobs`: jobs over HTTP, similar to the engines' task API, and the metrics of jobs.

Every call to the engine carries the caller's credentials, so the engine's roles decide who may read and write job
records. The model's endpoint comes from the gateway's settings, never from a request. A request gives a prompt by name
or as text, never as a file. For the metrics the gateway reads the records now and then with its own credentials:
workers have no port to be scraped.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from es_ttc.common.validation import did_you_mean, validated
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.record import JobState, is_encoding
from es_ttc.enrichment.jobs.submission import JobRequest, submit_job
from es_ttc.enrichment.proposals.plan import prompt_names
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.serving.admin.endpoint import EndpointRunner, json_object, received, with_callers_errors
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics

CHANGES = {
    "_pause": commands.pause, "_resume": commands.resume, "_cancel": commands.cancel, "_retry": commands.retry
}  # fmt: skip
_KIND = "jobs"
_AT_ONCE = 8
_MAX_BODY = 2**20
_LOOK_SECONDS = 20.0
INTERVAL_SECONDS = 60.0
"""Interval at which pending documents are counted for the metrics."""


_Api = TypeVar("_Api", bound="JobsApi")


def _answered(
    work: Callable[[_Api, Request, Engine], Coroutine[Any, Any, dict[str, Any]]],
) -> Callable[[_Api, Request], Awaitable[Response]]:
    """Give a method the engine with the caller's credentials, and make a response of its result or its error."""

    @wraps(work)
    async def answer(self: _Api, request: Request) -> Response:
        engine = self.gateway.engine.as_caller(Caller(request.headers.raw)).protocol()
        return await self.runner.json(request, with_callers_errors(work(self, request, engine)))

    return answer


class JobsApi:
    """Answers requests about jobs."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.runner = EndpointRunner(_KIND, gateway.metrics, _AT_ONCE)

    @_answered
    async def list(self, request: Request, engine: Engine) -> dict[str, Any]:
        """List the jobs."""
        states = [state for state in request.query_params.get("state", "").split(",") if state]
        for state in states:
            if state not in (*JobState,):
                raise InvalidRequest(f"there is no state [{state}]{did_you_mean(state, (*JobState,))}")
        jobs = await commands.listed(engine, self.gateway.settings, states)
        return {"jobs": [job.as_dict() for job in jobs]}

    @_answered
    async def submit(self, request: Request, engine: Engine) -> dict[str, Any]:
        """Submit a job that enriches an index."""
        job = validated(JobRequest, await json_object(received(request), _MAX_BODY, self.gateway.offload), _KIND)
        if job.prompt is not None and job.prompt_text is None and job.prompt not in prompt_names():
            raise InvalidRequest(
                f"[{_KIND}.prompt] there is no prompt [{job.prompt}]"
                f"{did_you_mean(job.prompt, prompt_names())} (one of your own goes into [prompt_text])"
            )
        try:
            return (await submit_job(engine, self.gateway.settings, job)).as_dict()
        except ConfigurationError as error:
            if job.prompt_text is None:
                raise
            raise InvalidRequest(str(error)) from error  # the caller's prompt, not the gateway's settings

    @_answered
    async def show(self, request: Request, engine: Engine) -> dict[str, Any]:
        """Return one job."""
        return (await commands.shown_job(engine, self.gateway.settings, request.path_params["job"])).as_dict()

    @_answered
    async def change(self, request: Request, engine: Engine) -> dict[str, Any]:
        """Pause, resume, cancel or retry a job."""
        change = request.path_params["change"]
        if change not in CHANGES:
            raise InvalidRequest(f"a job knows no [{change}]{did_you_mean(change, CHANGES)}")
        return (await CHANGES[change](engine, self.gateway.settings, request.path_params["job"])).as_dict()


class JobKind(StrEnum):
    """What a job does, as a label."""

    ENCODE = "encode"
    ENRICH = "enrich"


Look = Callable[[], Awaitable[Mapping[JobKind, int]]]
"""Returns the pending documents of running jobs, by kind."""


class JobMetrics:
    """Counts the pending documents of running jobs at an interval, and how long there have been any.

    A look that fails (no rights, no answer in time) changes no count; `es_ttc_jobs_readable` is 0 until one succeeds.
    """

    def __init__(self, look: Look, metrics: Metrics, now: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._metrics = metrics
        self._now = now
        self._since: dict[JobKind, float] = {}
        self._failure = ""

    async def run(self) -> None:
        """Look every minute, after an initial delay."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look once."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                pending = await self._look()
        except Exception as error:  # noqa: BLE001 - also a record that a newer release has written
            self._metrics.jobs_readable.set(0)
            reason = str(error) or f"no answer within {_LOOK_SECONDS:g} s"
            if reason != self._failure:  # logged once, not at every poll
                log.warning("jobs not counted", reason=reason)
            self._failure = reason
            return
        self._failure = ""
        self._metrics.jobs_readable.set(1)
        now = self._now()
        for kind in JobKind:
            waiting = pending.get(kind, 0)
            if waiting:
                self._since.setdefault(kind, now)
            else:
                self._since.pop(kind, None)
            self._metrics.pending_documents.labels(kind).set(waiting)
            self._metrics.backlog_seconds.labels(kind).set(now - self._since.get(kind, now))


async def pending_documents(gateway: Gateway) -> Mapping[JobKind, int]:
    """Return the pending documents of running jobs by kind, read with the gateway's own credentials."""
    engine = gateway.engine.as_gateway().protocol()
    pending = dict.fromkeys(JobKind, 0)
    for status in await commands.listed(engine, gateway.settings, [JobState.RUNNING]):
        kind = JobKind.ENCODE if is_encoding(status.job.id) else JobKind.ENRICH
        pending[kind] += status.progress.pending
    return pending

"""`/_ttc/jobs`: jobs over HTTP, similar to the engines' task API, with the caller's credentials.

Every call to the engine carries the caller's credentials, so the engine's roles decide who may read and write job
records. The model's endpoint comes from the gateway's settings, never from a request. A request gives a prompt by name
or as text, never as a file.
"""

from typing import Any

from starlette.requests import Request

from es_ttc.common.validation import did_you_mean, validated
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, service
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.service import JobRequest
from es_ttc.enrichment.proposals.plan import prompt_names
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.serving.admin.endpoint_runner import EndpointRunner
from es_ttc.serving.callers_engine import CallersEngine, with_callers_errors
from es_ttc.serving.engine_requests import EngineRequests
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.json_body import json_object
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.metrics import Metrics
from es_ttc.settings import GatewaySettings

_KIND = "jobs"
_AT_ONCE = 8
_LONGEST_BODY = 2**20
CHANGES = ("_pause", "_resume", "_cancel", "_retry")


class JobsApi:
    """Answers requests about jobs."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings, metrics: Metrics) -> None:
        self._engine = EngineRequests(upstream)
        self._settings = settings
        self._requests = EndpointRunner(_KIND, metrics, _AT_ONCE)

    async def all(self, request: Request) -> tuple[int, dict[str, Any]]:
        """List jobs, or submit one."""
        work = self._submit(request) if request.method == "POST" else self._list(request)
        return await self._requests.answered(with_callers_errors(work))

    async def one(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Return one job."""
        return await self._requests.answered(with_callers_errors(self._show(request)))

    async def change(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Pause, resume, cancel or retry a job."""
        return await self._requests.answered(with_callers_errors(self._change(request)))

    async def _list(self, request: Request) -> dict[str, Any]:
        states = [state for state in request.query_params.get("state", "").split(",") if state]
        for state in states:
            if state not in list(JobState):
                raise InvalidRequest(f"there is no state [{state}]{did_you_mean(state, list(JobState))}")
        found = await commands.listed(self._callers(request), self._settings, states)
        return {"jobs": [each.as_dict() for each in found]}

    async def _submit(self, request: Request) -> dict[str, Any]:
        submitted = validated(JobRequest, await json_object(request, _LONGEST_BODY), _KIND)
        if submitted.prompt is not None and submitted.prompt_text is None and submitted.prompt not in prompt_names():
            raise InvalidRequest(
                f"[{_KIND}.prompt] there is no prompt [{submitted.prompt}]"
                f"{did_you_mean(submitted.prompt, prompt_names())} (one of your own goes into [prompt_text])"
            )
        try:
            return (await service.submit(self._callers(request), self._settings, submitted)).as_dict()
        except ConfigurationError as error:
            if submitted.prompt_text is None:
                raise
            raise InvalidRequest(str(error)) from error  # the caller's prompt, not the gateway's settings

    async def _show(self, request: Request) -> dict[str, Any]:
        return (await commands.shown(self._callers(request), self._settings, request.path_params["job"])).as_dict()

    async def _change(self, request: Request) -> dict[str, Any]:
        change, job, engine = request.path_params["change"], request.path_params["job"], self._callers(request)
        status: commands.AnyStatus
        match change:
            case "_pause":
                status = await commands.pause(engine, self._settings, job)
            case "_cancel":
                status = await commands.cancel(engine, self._settings, job)
            case "_retry":
                status = await commands.retry(engine, self._settings, job)
            case "_resume":
                status = await commands.resume(engine, self._settings, job)
            case _:
                raise InvalidRequest(f"a job knows no [{change}]{did_you_mean(change, CHANGES)}")
        return status.as_dict()

    def _callers(self, request: Request) -> Engine:
        return CallersEngine(self._engine.as_caller(Caller(request.headers.raw)), self._settings)

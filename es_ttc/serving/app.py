"""The gateway as an ASGI application, built from its services, stages and endpoints."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from es_ttc.serving import garbage, tracing
from es_ttc.serving.admin.job_metrics import JobMetrics, counted_by
from es_ttc.serving.admin.jobs import JobsApi
from es_ttc.serving.endpoints import PAGE, PREFIX, JobEndpoints, StatusEndpoints, not_found, routes
from es_ttc.serving.engine_app import EngineApp, PathDispatch
from es_ttc.serving.features.encoding import Loader
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.bearer import AdminToken
from es_ttc.serving.http.body_memory import BodyMemory
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.entrance import Entrance
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.process import GatewayProcess, OnlyProcess
from es_ttc.serving.schemas.openapi import MODEL_TOKEN, SIDECAR_TOKEN, token_of_path
from es_ttc.serving.search import Searches
from es_ttc.serving.warm_up import WarmUp
from es_ttc.serving.writes.answers import WriteEncoding
from es_ttc.settings import GatewaySettings

_METRICS_SECONDS = 1.0


def create_app(
    settings: GatewaySettings,
    *,
    load: Loader | None = None,
    wait_for_encoder: bool = False,
    process: GatewayProcess | None = None,
    further: "FurtherRoutes | None" = None,
) -> ASGIApp:
    """Return the gateway's application.

    Args:
        settings: The gateway's settings.
        load: Loads an encoder by name with a cache folder; the default is ``es_ttc.encoders.load_encoder``.
        wait_for_encoder: Whether the encoder is loaded before the first request is accepted, or meanwhile.
        process: What this process shares with others; None if it is the only one.
        further: Makes routes of endpoints below `/_ttc/` that packages above this one answer.

    Raises:
        ConfigurationError: The engine's address, certificates, tuned parameters, models or programs are invalid, or
            traces are on and cannot be sent.
    """
    process = process or OnlyProcess()
    if settings.traces:
        tracing.start()
    gateway = Gateway(settings, load, process)
    writes = WriteEncoding(gateway)
    callers = CallerLimits(settings.max_caller_requests, settings.max_caller_windows_per_second)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.upstream, gateway.model:
            if wait_for_encoder:
                await gateway.warm_up.load()
            rest = gateway.warm_up.retry() if wait_for_encoder else gateway.warm_up.run()
            process.accepts(ready=gateway.warm_up.done)
            background = asyncio.gather(
                _load(rest, gateway.warm_up, process),
                _keep_current(gateway.metrics),
                _count_jobs(settings, gateway),
            )
            yield
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        garbage.restore()
        await writes.close()
        await gateway.close()
        if settings.traces:
            tracing.stop()

    status = StatusEndpoints(gateway, lambda: gateway.warm_up.done and process.all_ready())
    jobs = JobEndpoints(JobsApi(gateway.upstream, settings, gateway.metrics))
    endpoints = [*(further(gateway) if further is not None else ()), *routes(status, jobs)]
    own = Starlette(routes=endpoints, exception_handlers={HTTPException: not_found}, lifespan=lifespan)
    memory = BodyMemory(settings.max_bodies_mb * 2**20)
    engine = EngineApp(
        Searches(gateway, callers), writes, gateway.metrics, memory, settings.max_concurrent_requests, callers
    )
    return Entrance(
        PathDispatch(own, engine, memory),
        settings.allowed_hosts,
        settings.allowed_origins,
        _admin_token(settings),
        lambda: gateway.upstream.is_elasticsearch,
    )


def _admin_token(settings: GatewaySettings) -> AdminToken | None:
    if settings.admin_token is None:
        return None
    chosen = {f"{PREFIX}{name}" for name in settings.admin_open}
    own_tokens = {path for path, token in token_of_path().items() if token in (MODEL_TOKEN, SIDECAR_TOKEN)}
    below = (PAGE, f"{PAGE}/") if settings.ui else ()
    return AdminToken(settings.admin_token, frozenset(chosen | own_tokens | set(below[:1])), below[1:])


async def _load(rest: Awaitable[None], warm_up: WarmUp, process: GatewayProcess) -> None:
    """Load what is still missing, and tell the gateway's other processes."""
    await rest
    process.accepts(ready=warm_up.done)


async def _keep_current(metrics: Metrics) -> None:
    """Refresh the metrics that another process reads."""
    while metrics.shared:
        metrics.refresh()
        await asyncio.sleep(_METRICS_SECONDS)


async def _count_jobs(settings: GatewaySettings, gateway: Gateway) -> None:
    """Keep the metrics of jobs."""
    if settings.jobs_metrics_seconds:
        look = counted_by(gateway.upstream, settings)
        await JobMetrics(look, gateway.metrics).run(settings.jobs_metrics_seconds)


FurtherRoutes = Callable[[Gateway], Sequence[BaseRoute]]
"""Makes routes of endpoints below `/_ttc/`; a function of a module, because worker processes get it by its name."""

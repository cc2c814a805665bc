"""The gateway as an ASGI application: what it is built from, and its routes below `/_ttc`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from es_ttc.serving import tracing
from es_ttc.serving.admin.endpoint import PAGE, PREFIX, not_found_response
from es_ttc.serving.admin.jobs import JobMetrics, pending_documents
from es_ttc.serving.admin.openapi import MODEL_TOKEN, OPERATIONS, SIDECAR_TOKEN, routes
from es_ttc.serving.admission import AdminToken
from es_ttc.serving.entrance import Entrance
from es_ttc.serving.features.encoding import Loader
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.search import Searches
from es_ttc.serving.trial import Trial
from es_ttc.serving.warm_up import restore_garbage
from es_ttc.serving.writes.answers import WriteEncoding
from es_ttc.serving.writes.on_demand import OnDemandEncoder
from es_ttc.settings import GatewaySettings

_METRICS_SECONDS = 1.0

FurtherRoutes = Callable[[Gateway], Sequence[BaseRoute]]
"""Makes routes of endpoints below `/_ttc/`; a function of a module, because worker processes get it by its name."""


def create_app(
    settings: GatewaySettings,
    *,
    load: Loader | None = None,
    wait_for_encoder: bool = False,
    process: OnlyProcess | None = None,
    further: FurtherRoutes | None = None,
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
    writes, searches = WriteEncoding(gateway), Searches(gateway)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.upstream, gateway.model:
            if wait_for_encoder:
                await gateway.warm_up.load()
            rest = gateway.warm_up.retry() if wait_for_encoder else gateway.warm_up.run()
            process.accepts(ready=gateway.warm_up.done)
            background = asyncio.gather(
                _load(rest, gateway, process),
                _keep_current(gateway),
                _count_jobs(gateway),
                OnDemandEncoder(gateway).run(),
            )
            yield
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        restore_garbage()
        await gateway.close()
        if settings.traces:
            tracing.stop_tracing()

    endpoints = [
        *(further(gateway) if further is not None else ()),
        *routes(gateway, searches, lambda: gateway.warm_up.done and process.all_ready()),
    ]
    own = Starlette(routes=endpoints, exception_handlers={HTTPException: _not_found}, lifespan=lifespan)
    own.router.redirect_slashes = False  # it would send the client to whatever address its `Host` names
    answering = searches if settings.trial_log is None else Trial(gateway, searches, settings.trial_log)
    return Entrance(gateway, own, answering, writes, _admin_token(settings))


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer a request below `/_ttc` that has no endpoint."""
    return not_found_response(request, error.status_code if isinstance(error, HTTPException) else 500)


def _admin_token(settings: GatewaySettings) -> AdminToken | None:
    if settings.admin_token is None:
        return None
    chosen = {f"{PREFIX}{name}" for name in settings.admin_public}
    own_tokens = {one.path for one in OPERATIONS if one.security in (MODEL_TOKEN, SIDECAR_TOKEN)}
    below = (PAGE, f"{PAGE}/") if settings.ui else ()
    return AdminToken(settings.admin_token, frozenset(chosen | own_tokens | set(below[:1])), below[1:])


async def _load(rest: Awaitable[None], gateway: Gateway, process: OnlyProcess) -> None:
    await rest
    process.accepts(ready=gateway.warm_up.done)


async def _keep_current(gateway: Gateway) -> None:
    """Refresh the metrics that another process reads."""
    while gateway.metrics.shared:
        gateway.metrics.refresh()
        await asyncio.sleep(_METRICS_SECONDS)


async def _count_jobs(gateway: Gateway) -> None:
    """Keep the metrics of jobs."""
    await JobMetrics(partial(pending_documents, gateway), gateway.metrics).run()

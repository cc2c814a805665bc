"""The gateway as an ASGI application: what it is built from, and its routes below `/_ttc`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from es_ttc import __version__
from es_ttc.engine.versions import dotted
from es_ttc.errors import EngineUnavailable
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import compiled, registry
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving import tracing
from es_ttc.serving.admin.endpoint import PAGE, PREFIX, json_response, not_found_response
from es_ttc.serving.admin.jobs import JobMetrics, JobsApi, pending_documents
from es_ttc.serving.admin.models import ModelServer
from es_ttc.serving.admin.openapi import (
    MODEL_TOKEN,
    SIDECAR_TOKEN,
    Engine,
    Health,
    Info,
    Readiness,
    openapi,
    token_of_path,
)
from es_ttc.serving.admin.search_schema import search_body_schema
from es_ttc.serving.admin.sidecar import PROTOCOL_VERSION, Sidecar
from es_ttc.serving.entrance import AdminToken, Entrance
from es_ttc.serving.features.encoding import Loader
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.metrics import CONTENT_TYPE
from es_ttc.serving.process import OnlyProcess
from es_ttc.serving.search import Searches
from es_ttc.serving.warm_up import restore_garbage
from es_ttc.serving.writes.answers import WriteEncoding
from es_ttc.settings import GatewaySettings

_METRICS_SECONDS = 1.0
_READY_SECONDS = 2.0
_RERANK_VERSIONS = ("", "v1/", "v2/")
"""Clients of Cohere, Jina and vLLM append these to their base URL."""

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
    writes = WriteEncoding(gateway)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.upstream, gateway.model:
            if wait_for_encoder:
                await gateway.warm_up.load()
            rest = gateway.warm_up.retry() if wait_for_encoder else gateway.warm_up.run()
            process.accepts(ready=gateway.warm_up.done)
            background = asyncio.gather(_load(rest, gateway, process), _keep_current(gateway), _count_jobs(gateway))
            yield
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        restore_garbage()
        await writes.close()
        await gateway.close()
        if settings.traces:
            tracing.stop()

    endpoints = [
        *(further(gateway) if further is not None else ()),
        *routes(gateway, lambda: gateway.warm_up.done and process.all_ready()),
    ]
    own = Starlette(routes=endpoints, exception_handlers={HTTPException: _not_found}, lifespan=lifespan)
    return Entrance(gateway, own, Searches(gateway), writes, _admin_token(settings))


async def _not_found(request: Request, error: Exception) -> Response:
    """Answer a request below `/_ttc` that has no endpoint."""
    return not_found_response(request, error.status_code if isinstance(error, HTTPException) else 500)


def _admin_token(settings: GatewaySettings) -> AdminToken | None:
    if settings.admin_token is None:
        return None
    chosen = {f"{PREFIX}{name}" for name in settings.admin_open}
    own_tokens = {path for path, token in token_of_path().items() if token in (MODEL_TOKEN, SIDECAR_TOKEN)}
    below = (PAGE, f"{PAGE}/") if settings.ui else ()
    return AdminToken(settings.admin_token, frozenset(chosen | own_tokens | set(below[:1])), below[1:])


async def _load(rest: Awaitable[None], gateway: Gateway, process: OnlyProcess) -> None:
    """Load what is still missing, and tell the gateway's other processes."""
    await rest
    process.accepts(ready=gateway.warm_up.done)


async def _keep_current(gateway: Gateway) -> None:
    """Refresh the metrics that another process reads."""
    while gateway.metrics.shared:
        gateway.metrics.refresh()
        await asyncio.sleep(_METRICS_SECONDS)


async def _count_jobs(gateway: Gateway) -> None:
    """Keep the metrics of jobs."""
    if seconds := gateway.settings.jobs_metrics_seconds:
        await JobMetrics(partial(pending_documents, gateway), gateway.metrics).run(seconds)


def routes(gateway: Gateway, warm: Callable[[], bool]) -> list[Route]:
    """Return the routes below `/_ttc`; `warm` returns whether everything that searches need is loaded."""
    models, sidecar, jobs = ModelServer(gateway), Sidecar(gateway), JobsApi(gateway)
    return [
        Route(PREFIX, partial(info, gateway)),
        Route(f"{PREFIX}health", health),
        Route(f"{PREFIX}ready", partial(ready, gateway, warm)),
        Route(f"{PREFIX}metrics", partial(metrics, gateway)),
        Route(f"{PREFIX}openapi.json", described),
        Route(f"{PREFIX}search.schema.json", search_schema),
        *(Route(f"{PREFIX}{version}rerank", models.rerank, methods=["POST"]) for version in _RERANK_VERSIONS),
        Route(f"{PREFIX}v1/embeddings", models.embed, methods=["POST"]),
        Route(f"{PREFIX}score", sidecar.score, methods=["POST"]),
        Route(f"{PREFIX}encode", sidecar.encode, methods=["POST"]),
        Route(f"{PREFIX}jobs", jobs.all, methods=["GET", "POST"]),
        Route(f"{PREFIX}jobs/{{job}}", jobs.one),
        Route(f"{PREFIX}jobs/{{job}}/{{change}}", jobs.change, methods=["POST"]),
    ]


async def info(gateway: Gateway, request: Request) -> Response:
    """Return the gateway's version, methods and limits."""
    settings, upstream = gateway.settings, gateway.upstream
    engine = Engine(product=None)
    with suppress(EngineUnavailable):
        engine = Engine(product=await upstream.product())
        if (version := await upstream.version(request.headers.raw)) is not None:
            number = "serverless" if version.serverless else dotted(version.numbers)
            engine = Engine(product=engine.product, version=number, supported=not version.too_old)
    answer = Info(
        name="es-ttc gateway",
        version=__version__,
        engine=engine,
        methods=sorted([*registry.names(), *STRATEGIES]),
        rerankers=sorted(settings.rerankers),
        rewriters=rewriters.names(),
        llm=settings.llm_url is not None,
        encoders=list(gateway.encoders.names),
        score_protocol=PROTOCOL_VERSION,
        loops="compiled" if compiled.enabled() else "numpy",
        max_window=settings.max_window,
        default_timeout_ms=settings.default_timeout_ms,
    )
    return json_response(request, answer.model_dump(exclude_unset=True))


async def health(request: Request) -> Response:
    """Return that the process is alive."""
    return json_response(request, Health(status="ok").model_dump())


async def ready(gateway: Gateway, warm: Callable[[], bool], request: Request) -> Response:
    """Return whether searches can be rescored: the engine answers, and the encoders of its indices are loaded."""
    engine = await gateway.upstream.reachable(_READY_SECONDS)
    answer = Readiness(ready=engine and warm(), engine=engine, encoder=gateway.encoders.ready)
    return json_response(request, answer.model_dump(), 200 if answer.ready else 503)


async def metrics(gateway: Gateway, _: Request) -> Response:
    """Return metrics for Prometheus."""
    return Response(gateway.metrics.text(), media_type=CONTENT_TYPE)


async def described(request: Request) -> Response:
    """Return the description of these endpoints."""
    return json_response(request, openapi())


async def search_schema(request: Request) -> Response:
    """Return the JSON Schema of a search body's `ttc` sections."""
    return json_response(request, search_body_schema())

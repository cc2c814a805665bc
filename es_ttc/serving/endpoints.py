"""The endpoints below `/_ttc`: status, metrics, schemas, and the routes to all others."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_ttc import __version__
from es_ttc.engine.versions import dotted
from es_ttc.errors import EngineUnavailable
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import compiled, registry
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.admin.endpoint import PREFIX, json_response
from es_ttc.serving.admin.jobs import JobsApi
from es_ttc.serving.admin.models import ModelServer
from es_ttc.serving.admin.openapi import Engine, Health, Info, Readiness, openapi
from es_ttc.serving.admin.search_schema import search_body_schema
from es_ttc.serving.admin.sidecar import PROTOCOL_VERSION, Sidecar
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.metrics import CONTENT_TYPE

PAGE = f"{PREFIX}ui"
"""Address of the playground, whose files stand below it."""

_READY_SECONDS = 2.0
_RERANK_VERSIONS = ("", "v1/", "v2/")
"""Clients of Cohere, Jina and vLLM append these to their base URL."""


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

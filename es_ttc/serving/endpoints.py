"""The endpoints below `/_ttc`: status, metrics, and requests that are not searches."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cbor2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_ttc import __version__
from es_ttc.engine.versions import dotted
from es_ttc.errors import EngineUnavailable, EsTtcError, InvalidRequest
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import compiled, registry
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.admin.embeddings import EmbeddingsService
from es_ttc.serving.admin.encode import DocumentEncodingService
from es_ttc.serving.admin.frames import MEDIA_TYPE, PROTOCOL_VERSION
from es_ttc.serving.admin.jobs import JobsApi
from es_ttc.serving.admin.rerank import RerankService
from es_ttc.serving.admin.score import SidecarService
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.proxy import json_headers
from es_ttc.serving.metrics import CONTENT_TYPE
from es_ttc.serving.schemas.openapi import openapi
from es_ttc.serving.schemas.responses import Engine, Health, Info, Readiness
from es_ttc.serving.schemas.search_body import search_body_schema

PREFIX = "/_ttc/"
PAGE = "/_ttc/ui"
"""Address of the playground, whose files stand below it."""

_READY_SECONDS = 2.0
_RERANK_VERSIONS = ("", "v1/", "v2/")
"""Clients of Cohere, Jina and vLLM append these to their base URL."""


class UnknownEndpoint(InvalidRequest):
    """There is no such endpoint below `/_ttc`."""

    status = 404


class StatusEndpoints:
    """The endpoints of status and metrics, and of the gateway's services other than search."""

    def __init__(self, gateway: Gateway, warm: Callable[[], bool]) -> None:
        self._settings = gateway.settings
        self._upstream = gateway.upstream
        self._encoders = gateway.encoders
        self._metrics = gateway.metrics
        self._warm = warm
        self._reranking = RerankService(gateway)
        self._embeddings = EmbeddingsService(gateway)
        self._sidecar = SidecarService(gateway)
        self._document_encoding = DocumentEncodingService(gateway)

    async def info(self, request: Request) -> Response:
        """Return the gateway's version, methods and limits."""
        engine = Engine(product=None)
        with suppress(EngineUnavailable):
            engine = Engine(product=await self._upstream.product())
            if (version := await self._upstream.version(request.headers.raw)) is not None:
                number = "serverless" if version.serverless else dotted(version.numbers)
                engine = Engine(product=engine.product, version=number, supported=not version.too_old)
        info = Info(
            name="es-ttc gateway",
            version=__version__,
            engine=engine,
            methods=sorted([*registry.names(), *STRATEGIES]),
            rerankers=sorted(self._settings.rerankers),
            rewriters=rewriters.names(),
            llm=self._settings.llm_url is not None,
            encoders=list(self._encoders.names),
            score_protocol=PROTOCOL_VERSION,
            loops="compiled" if compiled.enabled() else "numpy",
            max_window=self._settings.max_window,
            default_timeout_ms=self._settings.default_timeout_ms,
        )
        return json_response(request, info.model_dump(exclude_unset=True))

    async def health(self, request: Request) -> Response:
        """Return that the process is alive."""
        return json_response(request, Health(status="ok").model_dump())

    async def ready(self, request: Request) -> Response:
        """Return whether searches can be rescored: the engine answers, and the encoders of its indices are loaded."""
        engine = await self._upstream.reachable(_READY_SECONDS)
        ready = Readiness(ready=engine and self._warm(), engine=engine, encoder=self._encoders.ready)
        return json_response(request, ready.model_dump(), 200 if ready.ready else 503)

    async def openapi(self, request: Request) -> Response:
        """Return the description of these endpoints."""
        return json_response(request, openapi())

    async def search_schema(self, request: Request) -> Response:
        """Return the JSON Schema of a search body's `ttc` sections."""
        return json_response(request, search_body_schema())

    async def rerank(self, request: Request) -> Response:
        """Return scores of the texts in the request."""
        status, body = await self._reranking.answer(request)
        return json_response(request, body, status)

    async def embed(self, request: Request) -> Response:
        """Return pooled vectors of the texts in the request."""
        status, body = await self._embeddings.answer(request)
        return json_response(request, body, status)

    async def score(self, request: Request) -> Response:
        """Return scores of a window that an engine with the plugin has found."""
        return _framed(request, *await self._sidecar.answer(request))

    async def encode(self, request: Request) -> Response:
        """Return features of documents that an engine with the plugin is about to index."""
        return _framed(request, *await self._document_encoding.answer(request))

    async def metrics(self, _: Request) -> Response:
        """Return metrics for Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)


class JobEndpoints:
    """The endpoints below `/_ttc/jobs`."""

    def __init__(self, api: JobsApi) -> None:
        self._api = api

    async def all(self, request: Request) -> Response:
        """List all jobs, or submit one."""
        status, body = await self._api.all(request)
        return json_response(request, body, status)

    async def one(self, request: Request) -> Response:
        """Return one job."""
        status, body = await self._api.one(request)
        return json_response(request, body, status)

    async def change(self, request: Request) -> Response:
        """Pause, resume, cancel or retry a job."""
        status, body = await self._api.change(request)
        return json_response(request, body, status)


def routes(own: StatusEndpoints, jobs: JobEndpoints) -> list[Route]:
    """Return the routes below `/_ttc`."""
    return [
        Route(PREFIX, own.info),
        Route(f"{PREFIX}health", own.health),
        Route(f"{PREFIX}ready", own.ready),
        Route(f"{PREFIX}metrics", own.metrics),
        Route(f"{PREFIX}openapi.json", own.openapi),
        Route(f"{PREFIX}search.schema.json", own.search_schema),
        *(Route(f"{PREFIX}{version}rerank", own.rerank, methods=["POST"]) for version in _RERANK_VERSIONS),
        Route(f"{PREFIX}v1/embeddings", own.embed, methods=["POST"]),
        Route(f"{PREFIX}score", own.score, methods=["POST"]),
        Route(f"{PREFIX}encode", own.encode, methods=["POST"]),
        Route(f"{PREFIX}jobs", jobs.all, methods=["GET", "POST"]),
        Route(f"{PREFIX}jobs/{{job}}", jobs.one),
        Route(f"{PREFIX}jobs/{{job}}/{{change}}", jobs.change, methods=["POST"]),
    ]


def json_response(request: Request, data: object, status: int = 200) -> Response:
    """Return a JSON response of the gateway's own."""
    body = jsonio.dumps(data, pretty="pretty" in request.query_params)
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)


def _framed(request: Request, status: int, body: dict[str, Any]) -> Response:
    if status >= 400 and MEDIA_TYPE not in request.headers.get("accept", ""):
        return json_response(request, body, status)
    return Response(cbor2.dumps(body), status, media_type=MEDIA_TYPE)


async def not_found(request: Request, error: Exception) -> Response:
    """Answer a request below `/_ttc` that has no endpoint."""
    return not_found_response(request, error.status_code if isinstance(error, HTTPException) else 500)


def not_found_response(request: Request, status: int = 404) -> Response:
    """Return the answer to a request below `/_ttc` that nothing answers."""
    problem: EsTtcError = UnknownEndpoint(f"nothing answers {request.method} [{request.url.path}]: see /_ttc/")
    body = jsonio.dumps(problem.body())
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)

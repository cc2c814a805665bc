"""The gateway's own few addresses below `/_ttc`: what it says about itself, and work that is not a search."""

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
from es_ttc.serving.admin.encode import DocumentEncodingService
from es_ttc.serving.admin.frames import MEDIA_TYPE, PROTOCOL_VERSION
from es_ttc.serving.admin.jobs import JobsApi
from es_ttc.serving.admin.rerank import RerankService
from es_ttc.serving.admin.score import SidecarService
from es_ttc.serving.engine_app import error_body
from es_ttc.serving.features.encoding import Encoders
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.proxy import json_headers
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.metrics import CONTENT_TYPE, Metrics
from es_ttc.serving.warm_up import WarmUp
from es_ttc.settings import GatewaySettings

PREFIX = "/_ttc/"
_READY_SECONDS = 2.0


class UnknownEndpoint(InvalidRequest):
    """There is nothing at an address below `/_ttc`."""

    status = 404


class StatusEndpoints:
    """What the gateway says about itself."""

    def __init__(
        self,
        settings: GatewaySettings,
        upstream: Upstream,
        encoders: Encoders,
        warm_up: WarmUp,
        reranking: RerankService,
        sidecar: SidecarService,
        document_encoding: DocumentEncodingService,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._encoders = encoders
        self._warm_up = warm_up
        self._reranking = reranking
        self._sidecar = sidecar
        self._document_encoding = document_encoding
        self._metrics = metrics

    async def info(self, request: Request) -> Response:
        """Who this is, and what it can do."""
        engine: dict[str, Any] = {"product": None}
        with suppress(EngineUnavailable):
            engine = {"product": await self._upstream.product()}
            if (version := await self._upstream.version(request.headers.raw)) is not None:
                engine |= {"version": dotted(version.numbers), "supported": not version.too_old}
        return json_response(
            request,
            {
                "name": "es-ttc gateway",
                "version": __version__,
                "engine": engine,
                "methods": sorted([*registry.names(), *STRATEGIES]),
                "rerankers": sorted(self._settings.rerankers),
                "rewriters": rewriters.names(),
                "llm": self._settings.llm_url is not None,
                "encoders": list(self._encoders.names),
                "score_protocol": PROTOCOL_VERSION,
                "loops": "compiled" if compiled.prepared() else "numpy",
                "max_window": self._settings.max_window,
                "default_timeout_ms": self._settings.default_timeout_ms,
            },
        )

    async def health(self, request: Request) -> Response:
        """The process answers."""
        return json_response(request, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Searches can be rescored: the engine answers, and the encoders of its indices are loaded."""
        engine = await self._upstream.reachable(_READY_SECONDS)
        encoder = self._warm_up.done
        status = 200 if engine and encoder else 503
        return json_response(request, {"ready": status == 200, "engine": engine, "encoder": encoder}, status)

    async def rerank(self, request: Request) -> Response:
        """Scores of texts that are sent along."""
        status, body = await self._reranking.answer(request)
        return json_response(request, body, status)

    async def score(self, request: Request) -> Response:
        """Scores of a window that an engine with our plugin has found."""
        return _framed(request, *await self._sidecar.answer(request))

    async def encode(self, request: Request) -> Response:
        """Features of documents that an engine with our plugin is about to index."""
        return _framed(request, *await self._document_encoding.answer(request))

    async def metrics(self, _: Request) -> Response:
        """Measurements for Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)


class JobEndpoints:
    """What there is below `/_ttc/jobs`."""

    def __init__(self, door: JobsApi) -> None:
        self._door = door

    async def all(self, request: Request) -> Response:
        """All jobs, or a new one."""
        status, body = await self._door.all(request)
        return json_response(request, body, status)

    async def one(self, request: Request) -> Response:
        """One job."""
        status, body = await self._door.one(request)
        return json_response(request, body, status)

    async def change(self, request: Request) -> Response:
        """A job paused, resumed, cancelled, retried."""
        status, body = await self._door.change(request)
        return json_response(request, body, status)


def routes(own: StatusEndpoints, jobs: JobEndpoints) -> list[Route]:
    """Return the addresses below `/_ttc`."""
    return [
        Route(PREFIX, own.info),
        Route(f"{PREFIX}health", own.health),
        Route(f"{PREFIX}ready", own.ready),
        Route(f"{PREFIX}metrics", own.metrics),
        Route(f"{PREFIX}rerank", own.rerank, methods=["POST"]),
        Route(f"{PREFIX}score", own.score, methods=["POST"]),
        Route(f"{PREFIX}encode", own.encode, methods=["POST"]),
        Route(f"{PREFIX}jobs", jobs.all, methods=["GET", "POST"]),
        Route(f"{PREFIX}jobs/{{job}}", jobs.one),
        Route(f"{PREFIX}jobs/{{job}}/{{change}}", jobs.change, methods=["POST"]),
    ]


def json_response(request: Request, data: object, status: int = 200) -> Response:
    """Return a JSON answer of the gateway's own."""
    body = jsonio.dumps(data, pretty="pretty" in request.query_params)
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)


def _framed(request: Request, status: int, body: dict[str, Any]) -> Response:
    if status >= 400 and MEDIA_TYPE not in request.headers.get("accept", ""):
        return json_response(request, body, status)
    return Response(cbor2.dumps(body), status, media_type=MEDIA_TYPE)


async def not_found(request: Request, error: Exception) -> Response:
    """Answer a request below `/_ttc` that nothing answers."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem: EsTtcError = UnknownEndpoint(f"nothing answers {request.method} [{request.url.path}]: see /_ttc/")
    body = error_body(problem)
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)

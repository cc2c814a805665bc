"""The gateway as an ASGI application: its parts put together, and its own few addresses below `/_ttc`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import cbor2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from es_ttc import __version__
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import EngineUnavailable, EsTtcError, InvalidRequest, TooManyRequests
from es_ttc.gateway import jsonio
from es_ttc.gateway.attached import AttachedFeatures
from es_ttc.gateway.body_memory import BodyMemory
from es_ttc.gateway.document_encoding import DocumentEncoding
from es_ttc.gateway.encoding import Encoders, Loader
from es_ttc.gateway.entrance import Entrance, error_body
from es_ttc.gateway.features import FeatureStore
from es_ttc.gateway.frames import MEDIA_TYPE, PROTOCOL_VERSION
from es_ttc.gateway.incoming import Disconnected, Incoming
from es_ttc.gateway.jobs import JobsDoor
from es_ttc.gateway.knn.handler import KnnHandler
from es_ttc.gateway.knn.retrieving import Retrieving
from es_ttc.gateway.limits import request_limits
from es_ttc.gateway.logs import log
from es_ttc.gateway.metrics import CONTENT_TYPE, Metrics
from es_ttc.gateway.pool import BoundedPool
from es_ttc.gateway.programs import serve_programs
from es_ttc.gateway.proxy import json_headers
from es_ttc.gateway.query.handler import QueryHandler
from es_ttc.gateway.query.model import SharedModel
from es_ttc.gateway.query.rewriting import Rewriting
from es_ttc.gateway.reads import ReadBudget
from es_ttc.gateway.rerank import Reranking
from es_ttc.gateway.rescoring import Rescoring
from es_ttc.gateway.scoring import WindowScorer
from es_ttc.gateway.search import SearchHandler
from es_ttc.gateway.sidecar import Sidecar
from es_ttc.gateway.upstream import Caller, Upstream
from es_ttc.gateway.walks.walking import Walks
from es_ttc.rerankers import Rerankers
from es_ttc.rerankers.llm import of_the_gateway as llm_rerankers
from es_ttc.reranking import STRATEGIES
from es_ttc.rescorers import compiled, registry
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.retrievers import registry as retrievers
from es_ttc.rewriters import registry as rewriters
from es_ttc.rewriters.prompts import Prompts
from es_ttc.settings import GatewaySettings

_QUEUE_A_THREAD = 32
_ENCODING_THREADS = 2
_READY_SECONDS = 2.0
_OWN = "/_ttc/"
_READ_AHEAD = 2**20


class NotFound(InvalidRequest):
    """There is nothing at an address below `/_ttc`."""

    status = 404


def create_app(settings: GatewaySettings, *, load: Loader | None = None, wait_for_encoder: bool = False) -> ASGIApp:
    """Make the gateway's application.

    Args:
        settings: The engine and the limits.
        load: Makes an encoder from its name and the cache folder; the default is ``es_ttc.encoders.load_encoder``.
        wait_for_encoder: Load the encoder before the first request is taken, in place of beside it.

    Raises:
        ConfigurationError: The engine's address, certificates, tuned parameters or promoted programs are wrong.
    """
    metrics = Metrics()
    upstream = Upstream(settings)
    encoding = BoundedPool("encoding", threads=_ENCODING_THREADS, queue=_ENCODING_THREADS * _QUEUE_A_THREAD)
    scoring = BoundedPool("scoring", threads=settings.scoring_threads, queue=settings.scoring_threads * _QUEUE_A_THREAD)
    names = (settings.encoder, *settings.encoders)
    encoders = Encoders(names, settings.cache_dir, load or _load_encoder, _load_variant, encoding)
    attached = AttachedFeatures(upstream, settings.side_credentials)
    reads = ReadBudget(upstream, settings.feature_reads_mb)
    features = FeatureStore(upstream, settings.feature_cache_mb * 2**20, scoring, attached.door, reads)
    metrics.watch_cache(features.cache)
    turns = reads.turns
    metrics.watch_reads(lambda: turns.in_flight, lambda: turns.waiting, lambda: turns.capacity)
    scorer = WindowScorer(upstream, features, attached, encoders, scoring)
    tuned = TunedDefaults.read(settings.tuned)
    programs = serve_programs(settings)
    rerankers = Rerankers(settings.rerankers, llm_rerankers(settings))
    walks = Walks(upstream, scorer, attached, rerankers, metrics)
    searches = SearchHandler(
        upstream,
        Rescoring(scorer, walks, settings.default_timeout_ms, tuned, metrics),
        attached,
        request_limits(settings),
        max_body=settings.max_body_mb * 2**20,
        max_window=settings.max_window,
    )

    retrieving = Retrieving(
        upstream,
        features,
        attached,
        encoders,
        scoring,
        metrics,
        tuned,
        default_timeout_ms=settings.default_timeout_ms,
        max_window=settings.max_window,
    )
    knn = KnnHandler(searches, retrieving, max_window=settings.max_window)
    model = SharedModel(settings)
    rewriting = Rewriting(
        upstream,
        model,
        Prompts(settings.sketch_prompts),
        metrics,
        default_timeout_ms=settings.rewrite_timeout_ms,
    )
    queries = QueryHandler(searches, knn, rewriting)
    reranking = Reranking(
        encoders,
        scorer,
        metrics,
        searches.offload,
        max_body=settings.max_body_mb * 2**20,
        max_documents=settings.max_window,
        timeout_ms=settings.rerank_timeout_ms,
    )
    sidecar = Sidecar(
        scorer,
        tuned,
        metrics,
        searches.offload,
        token=settings.sidecar_token,
        max_body=settings.max_body_mb * 2**20,
        max_documents=settings.max_window,
        at_once=settings.max_concurrent_requests,
        caller=Caller(upstream.service_headers()),
    )
    document_encoding = DocumentEncoding(
        upstream,
        encoders,
        encoding,
        metrics,
        searches.offload,
        token=settings.sidecar_token,
        max_body=settings.max_body_mb * 2**20,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with upstream, model:
            loading = asyncio.create_task(_prepare(encoders, compile_loops=settings.compiled))
            if wait_for_encoder:
                await loading
            yield
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
        await rerankers.close()
        searches.offload.close()
        encoding.close()
        scoring.close()
        programs.close()

    own = _OwnPages(settings, upstream, encoders, reranking, sidecar, document_encoding, metrics)
    jobs = _JobPages(JobsDoor(upstream, settings, metrics))
    addresses = Starlette(
        routes=[
            Route(_OWN, own.info),
            Route(f"{_OWN}health", own.health),
            Route(f"{_OWN}ready", own.ready),
            Route(f"{_OWN}metrics", own.metrics),
            Route(f"{_OWN}rerank", own.rerank, methods=["POST"]),
            Route(f"{_OWN}score", own.score, methods=["POST"]),
            Route(f"{_OWN}encode", own.encode, methods=["POST"]),
            Route(f"{_OWN}jobs", jobs.all, methods=["GET", "POST"]),
            Route(f"{_OWN}jobs/{{job}}", jobs.one),
            Route(f"{_OWN}jobs/{{job}}/{{change}}", jobs.change, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _not_found},
        lifespan=lifespan,
    )
    memory = BodyMemory(settings.max_bodies_mb * 2**20)
    return _Doors(addresses, Entrance(upstream, queries, metrics, memory, settings.max_concurrent_requests), memory)


class _Doors:
    """Keeps requests for the engine off the routing of our own few addresses.

    Args:
        own: Answers below `/_ttc/`, and starts and stops the gateway.
        entrance: Answers everything else.
        memory: Counts the bodies of requests below `/_ttc/`.
    """

    def __init__(self, own: ASGIApp, entrance: ASGIApp, memory: BodyMemory) -> None:
        self._own = own
        self._entrance = entrance
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in the server's start and end."""
        if scope["type"] == "http" and not scope["path"].startswith(_OWN):
            await self._entrance(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._answer_post(scope, receive, send)
        else:
            await self._own(scope, receive, send)

    async def _answer_post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request below `/_ttc/` once its body is there, so that a slow one takes nobody's place."""
        incoming = Incoming(scope, receive, self._memory)
        try:
            await incoming.read_ahead(_READ_AHEAD)
            await self._own(scope, incoming.replayed(), send)
        except Disconnected:
            pass
        except TooManyRequests as error:
            await _json(Request(scope), error.body(), error.status)(scope, receive, send)
        finally:
            incoming.forget()


class _OwnPages:
    """What the gateway says about itself."""

    def __init__(
        self,
        settings: GatewaySettings,
        upstream: Upstream,
        encoders: Encoders,
        reranking: Reranking,
        sidecar: Sidecar,
        document_encoding: DocumentEncoding,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._encoders = encoders
        self._reranking = reranking
        self._sidecar = sidecar
        self._document_encoding = document_encoding
        self._metrics = metrics

    async def info(self, request: Request) -> Response:
        """Who this is, and what it can do."""
        try:
            product: str | None = await self._upstream.product()
        except EngineUnavailable:
            product = None
        return _json(
            request,
            {
                "name": "es-ttc gateway",
                "version": __version__,
                "engine": {"product": product},
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
        return _json(request, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Searches can be rescored: the engine answers and the encoder is loaded."""
        engine = await self._upstream.reachable(_READY_SECONDS)
        encoder = self._encoders.ready
        status = 200 if engine and encoder else 503
        return _json(request, {"ready": status == 200, "engine": engine, "encoder": encoder}, status)

    async def rerank(self, request: Request) -> Response:
        """Scores of texts that are sent along."""
        status, body = await self._reranking.answer(request)
        return _json(request, body, status)

    async def score(self, request: Request) -> Response:
        """Scores of a window that an engine with our plugin has found."""
        return _framed(request, *await self._sidecar.answer(request))

    async def encode(self, request: Request) -> Response:
        """Features of documents that an engine with our plugin is about to index."""
        return _framed(request, *await self._document_encoding.answer(request))

    async def metrics(self, _: Request) -> Response:
        """Measurements for Prometheus."""
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)


class _JobPages:
    """What there is below `/_ttc/jobs`."""

    def __init__(self, door: JobsDoor) -> None:
        self._door = door

    async def all(self, request: Request) -> Response:
        """All jobs, or a new one."""
        status, body = await self._door.all(request)
        return _json(request, body, status)

    async def one(self, request: Request) -> Response:
        """One job."""
        status, body = await self._door.one(request)
        return _json(request, body, status)

    async def change(self, request: Request) -> Response:
        """A job paused, resumed, cancelled, retried."""
        status, body = await self._door.change(request)
        return _json(request, body, status)


async def _prepare(encoders: Encoders, *, compile_loops: bool) -> None:
    """Load what the first search needs: the methods' code, compiled where it can be, and the encoder."""
    if compile_loops:
        await asyncio.to_thread(_compile)
    for kind, group in (("rescorer", registry), ("retriever", retrievers), ("rewriter", rewriters)):
        for name, problem in (await asyncio.to_thread(group.problems)).items():  # imports what the first use would
            log.warning(f"{kind} cannot be used", name=name, problem=problem)
    try:
        encoder = await encoders.first()
    except Exception as error:  # noqa: BLE001 - any backend may fail in any way; searches say so again
        log.error("encoder cannot be loaded", name=encoders.names[0], problem=str(error))
    else:
        log.info("encoder loaded", name=encoders.names[0], identity=encoder.identity.key, backend=encoder.backend)


def _compile() -> None:
    try:
        used = compiled.prepare()
    except Exception as error:  # noqa: BLE001 - a compiler may fail in any way; numpy scores then
        log.warning("loops cannot be compiled, numpy scores", problem=f"{type(error).__name__}: {error}")
    else:
        log.info("scoring", loops="compiled" if used else "numpy")


def _load_encoder(name: str, cache_dir: Path) -> Encoder:
    from es_ttc.encoders import load_encoder  # the backends are heavy

    encoder: Encoder = load_encoder(name, cache_dir=cache_dir)
    return encoder


def _load_variant(identity: EncoderIdentity, name: str, cache_dir: Path) -> Encoder:
    from es_ttc.mappings.encoder import load_encoder_for

    return load_encoder_for(identity, name, cache_dir=cache_dir)


def _json(request: Request, data: object, status: int = 200) -> Response:
    body = jsonio.dumps(data, pretty="pretty" in request.query_params)
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)


def _framed(request: Request, status: int, body: dict[str, Any]) -> Response:
    if status >= 400 and MEDIA_TYPE not in request.headers.get("accept", ""):
        return _json(request, body, status)
    return Response(cbor2.dumps(body), status, media_type=MEDIA_TYPE)


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem: EsTtcError = NotFound(f"nothing answers {request.method} [{request.url.path}]: see /_ttc/")
    body = error_body(problem)
    headers = {name.decode(): value.decode() for name, value in json_headers(request.headers.raw, body)}
    return Response(body, status, headers)

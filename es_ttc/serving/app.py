"""The gateway as an ASGI application, built from its services, stages and endpoints."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.errors import TooManyRequests
from es_ttc.reranking.rerankers import Rerankers
from es_ttc.reranking.rerankers.llm import of_the_gateway as llm_rerankers
from es_ttc.rescorers import compiled
from es_ttc.rescorers.learned import model as learned_models
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.rewriters.prompts import Prompts
from es_ttc.serving import garbage, tracing
from es_ttc.serving.adaptive.ranking import AdaptiveReranking
from es_ttc.serving.admin.bearer import AdminToken
from es_ttc.serving.admin.embeddings import EmbeddingsService
from es_ttc.serving.admin.encode import DocumentEncodingService
from es_ttc.serving.admin.job_metrics import JobMetrics, counted_by
from es_ttc.serving.admin.jobs import JobsApi
from es_ttc.serving.admin.rerank import RerankService
from es_ttc.serving.admin.score import SidecarService
from es_ttc.serving.endpoints import PAGE, PREFIX, JobEndpoints, StatusEndpoints, json_response, not_found, routes
from es_ttc.serving.engine_app import EngineApp
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.codebooks import CodebookStore
from es_ttc.serving.features.encoding import Encoders, Loader
from es_ttc.serving.features.numbers import NumericFields
from es_ttc.serving.features.read_budget import ReadBudget
from es_ttc.serving.features.scoring import WindowScorer
from es_ttc.serving.features.store import FeatureServices, FeatureStore
from es_ttc.serving.http.body_memory import BodyMemory
from es_ttc.serving.http.caller import Caller, ClientDisconnected
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.entrance import Entrance
from es_ttc.serving.http.limits import request_limits
from es_ttc.serving.http.media_types import MediaTypes
from es_ttc.serving.http.proxy import PassThrough
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.knn.retrieval import RetrievalService
from es_ttc.serving.knn.stage import KnnStage
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.pool import BoundedPool, Offload
from es_ttc.serving.process import GatewayProcess, OnlyProcess
from es_ttc.serving.programs import serve_programs
from es_ttc.serving.query.rewriting import RewriteService
from es_ttc.serving.query.shared_model import SharedModel
from es_ttc.serving.query.stage import RewriteStage
from es_ttc.serving.rescore.candidates import NearestDocuments
from es_ttc.serving.rescore.page_evidence import PageEvidence
from es_ttc.serving.rescore.stage import RescoreStage
from es_ttc.serving.rescore.window import WindowRescorers
from es_ttc.serving.schemas.openapi import MODEL_TOKEN, SIDECAR_TOKEN, token_of_path
from es_ttc.serving.search.accepted_callers import AcceptedCallers
from es_ttc.serving.search.engine import EngineSearches
from es_ttc.serving.search.pipeline import SearchPipeline
from es_ttc.serving.search.request import RequestReader
from es_ttc.serving.search.templates import Templates
from es_ttc.serving.warm_up import WarmUp
from es_ttc.serving.writes.afterwards import LaterEncoding
from es_ttc.serving.writes.batches import EncodingBatches
from es_ttc.serving.writes.followed_indices import FollowedIndices
from es_ttc.serving.writes.stage import WriteEncoding
from es_ttc.settings import GatewaySettings

_QUEUE_A_THREAD = 32
_ENCODING_THREADS = 2
_READ_AHEAD = 2**20
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
    services = Services(settings, load, process)
    callers = _caller_limits(settings, process.count)
    searches = search_pipeline(settings, services, callers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with services.upstream, services.model:
            if wait_for_encoder:
                await services.warm_up.load()
            rest = services.warm_up.retry() if wait_for_encoder else services.warm_up.run()
            process.accepts(ready=services.warm_up.done)
            background = asyncio.gather(
                _load(rest, services.warm_up, process),
                _keep_current(services.metrics),
                _count_jobs(settings, services),
            )
            yield
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        garbage.restore()
        await services.close()
        if settings.traces:
            tracing.stop()

    status = _status_endpoints(settings, services, process)
    jobs = JobEndpoints(JobsApi(services.upstream, settings, services.metrics))
    endpoints = [*(further(settings, services) if further is not None else ()), *routes(status, jobs)]
    own = Starlette(routes=endpoints, exception_handlers={HTTPException: not_found}, lifespan=lifespan)
    memory = BodyMemory(settings.max_bodies_mb * 2**20)
    writes = _write_encoding(settings, services)
    engine = EngineApp(searches, writes, services.metrics, memory, settings.max_concurrent_requests, callers)
    return Entrance(
        _PathDispatch(own, engine, memory), settings.allowed_hosts, settings.allowed_origins, _admin_token(settings)
    )


def _admin_token(settings: GatewaySettings) -> AdminToken | None:
    if settings.admin_token is None:
        return None
    chosen = {f"{PREFIX}{name}" for name in settings.admin_open}
    own_tokens = {path for path, token in token_of_path().items() if token in (MODEL_TOKEN, SIDECAR_TOKEN)}
    below = (PAGE, f"{PAGE}/") if settings.ui else ()
    return AdminToken(settings.admin_token, frozenset(chosen | own_tokens | set(below[:1])), below[1:])


def _model_tokens(settings: GatewaySettings) -> tuple[SecretStr, ...]:
    """Return the tokens with which the gateway's models may be used; none if everyone may."""
    return tuple(token for token in (settings.model_token, settings.admin_token) if token is not None)


async def _load(rest: Awaitable[None], warm_up: WarmUp, process: GatewayProcess) -> None:
    """Load what is still missing, and tell the gateway's other processes."""
    await rest
    process.accepts(ready=warm_up.done)


async def _keep_current(metrics: Metrics) -> None:
    """Refresh the metrics that another process reads."""
    while metrics.shared:
        metrics.refresh()
        await asyncio.sleep(_METRICS_SECONDS)


async def _count_jobs(settings: GatewaySettings, services: "Services") -> None:
    """Keep the metrics of jobs."""
    if settings.jobs_metrics_seconds:
        look = counted_by(services.upstream, settings)
        await JobMetrics(look, services.metrics).run(settings.jobs_metrics_seconds)


class Services:
    """The services that the parts of a gateway share.

    Args:
        settings: The gateway's settings.
        load: Loads an encoder by name with a cache folder; None for the default.
        process: What this process shares with others.
    """

    def __init__(self, settings: GatewaySettings, load: Loader | None, process: GatewayProcess) -> None:
        threads = settings.scoring_threads
        log.info("scoring", loops="compiled" if compiled.enable(settings.compiled) else "numpy")
        self.metrics = Metrics()
        self.upstream = Upstream(settings)
        media_types = MediaTypes(self.upstream, translate=settings.translate_media_types)
        self.searches = EngineSearches(self.upstream, media_types)
        self.pass_through = PassThrough(self.upstream, media_types, max_body=settings.max_body_mb * 2**20)
        self.offload = Offload()
        self.encoding = BoundedPool("encoding", threads=_ENCODING_THREADS, queue=_ENCODING_THREADS * _QUEUE_A_THREAD)
        self.scoring = BoundedPool("scoring", threads=threads, queue=threads * _QUEUE_A_THREAD)
        names = (settings.encoder, *settings.encoders)
        self.encoders = Encoders(names, settings.cache_dir, load or _load_encoder, _load_variant, self.encoding)
        self.later = LaterEncoding(settings, self.encoders, self.encoding)
        self.warm_up = WarmUp(self.encoders, self.upstream)
        self.attached = AttachedFeatureLocator(self.upstream, settings.side_credentials)
        reads = ReadBudget(self.upstream, settings.feature_reads_mb, process.count)
        cache = process.feature_cache(settings)
        codebooks = CodebookStore(self.upstream, self.scoring)
        self.features = FeatureStore(self.upstream, cache, self.scoring, self.attached.side_caller, reads, codebooks)
        self.with_features = FeatureServices(self.upstream, self.features, self.attached, self.encoders, self.scoring)
        self.numbers = NumericFields(self.upstream)
        self.scorer = WindowScorer(self.with_features, self.numbers)
        self.tuned = TunedDefaults.read(settings.tuned)
        if settings.ranking_models is not None:  # an evaluation has its own, and starts a gateway without settings
            learned_models.serve_from(settings.ranking_models)
        self.programs = serve_programs(settings)
        self.rerankers = Rerankers(settings.rerankers, llm_rerankers(settings))
        self.model = SharedModel(settings)
        self.metrics.watch_model(lambda: self.model.breaker_open)
        turns = reads.turns
        self.metrics.watch_cache(cache)
        self.metrics.watch_reads(lambda: turns.in_flight, lambda: turns.waiting, lambda: turns.capacity)

    async def close(self) -> None:
        """Close threads, processes and connections."""
        await self.rerankers.close()
        await self.later.close()
        self.offload.close()
        self.encoding.close()
        self.scoring.close()
        self.programs.close()


FurtherRoutes = Callable[[GatewaySettings, Services], Sequence[BaseRoute]]
"""Makes routes of endpoints below `/_ttc/`; a function of a module, because worker processes get it by its name."""


def _caller_limits(settings: GatewaySettings, processes: int) -> CallerLimits:
    """Return the limits of callers in one of several processes."""
    requests, windows = settings.max_caller_requests, settings.max_caller_windows_per_second
    return CallerLimits(-(-requests // processes), windows / processes)


def search_pipeline(settings: GatewaySettings, services: Services, callers: CallerLimits) -> SearchPipeline:
    """Return the pipeline for searches: queries are rewritten, then kNN clauses retrieved, then windows rescored."""
    upstream, metrics, tuned = services.upstream, services.metrics, services.tuned
    limits, offload, accepted = request_limits(settings), services.offload, AcceptedCallers()
    timeout_ms, max_window = settings.default_timeout_ms, settings.max_window
    rewriting = RewriteService(
        upstream,
        services.model,
        Prompts(settings.sketch_prompts),
        metrics,
        default_timeout_ms=settings.rewrite_timeout_ms,
    )
    retrieval = RetrievalService(
        services.with_features,
        metrics,
        tuned,
        default_timeout_ms=timeout_ms,
        max_window=max_window,
    )
    nearest = NearestDocuments(services.with_features, services.searches)
    rescorers = WindowRescorers(services.scorer, nearest, timeout_ms, tuned, metrics)
    strategies = AdaptiveReranking(
        upstream, services.scorer, services.attached, services.rerankers, metrics, timeout_ms
    )
    stages = (
        RewriteStage(rewriting, limits, offload),
        KnnStage(retrieval, accepted, limits, offload, max_window=max_window),
        RescoreStage(
            rescorers,
            strategies,
            services.attached,
            PageEvidence(services.scorer, timeout_ms),
            services.numbers,
            accepted,
            callers,
            limits,
            offload,
            max_window=max_window,
        ),
    )
    reader = RequestReader(limits, offload, max_body=settings.max_body_mb * 2**20)
    templates = Templates(services.searches, limits, offload)
    return SearchPipeline(
        upstream, services.searches, services.pass_through, reader, templates, stages, accepted, offload
    )


def _write_encoding(settings: GatewaySettings, services: Services) -> WriteEncoding:
    batches = EncodingBatches(services.encoders, services.encoding)
    services.metrics.watch_writes(lambda: batches.outstanding)
    return WriteEncoding(
        services.upstream,
        services.pass_through,
        FollowedIndices(services.upstream),
        batches,
        services.later,
        services.metrics,
        services.offload,
        timeout_ms=settings.write_timeout_ms,
        added_bytes=settings.write_features_mb * 2**20,
    )


def _status_endpoints(settings: GatewaySettings, services: Services, process: GatewayProcess) -> StatusEndpoints:
    max_body, max_documents = settings.max_body_mb * 2**20, settings.max_window
    reranking = RerankService(
        services.encoders,
        services.scorer,
        settings.rerank_models,
        services.metrics,
        services.offload,
        tokens=_model_tokens(settings),
        max_body=max_body,
        max_documents=max_documents,
        timeout_ms=settings.rerank_timeout_ms,
    )
    embeddings = EmbeddingsService(
        services.encoders,
        settings.embedding_models,
        services.metrics,
        services.offload,
        tokens=_model_tokens(settings),
        max_body=max_body,
        timeout_ms=settings.rerank_timeout_ms,
    )
    sidecar = SidecarService(
        services.scorer,
        services.tuned,
        services.metrics,
        services.offload,
        token=settings.sidecar_token,
        max_body=max_body,
        max_documents=max_documents,
        at_once=settings.max_concurrent_requests,
        caller=Caller(services.upstream.service_headers()),
    )
    document_encoding = DocumentEncodingService(
        services.upstream,
        services.encoders,
        services.encoding,
        services.metrics,
        services.offload,
        token=settings.sidecar_token,
        max_body=max_body,
    )
    return StatusEndpoints(
        settings,
        services.upstream,
        services.encoders,
        lambda: services.warm_up.done and process.all_ready(),
        reranking,
        embeddings,
        sidecar,
        document_encoding,
        services.metrics,
    )


class _PathDispatch:
    """Passes a request to the gateway's own endpoints or to the engine's application, without routing the latter.

    Args:
        own: The endpoints below `/_ttc/`, and the gateway's start and end.
        engine: All other requests.
        memory: Counts the bodies of requests below `/_ttc/`.
    """

    def __init__(self, own: ASGIApp, engine: ASGIApp, memory: BodyMemory) -> None:
        self._own = own
        self._engine = engine
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or handle the server's start and end."""
        if scope["type"] == "http" and not scope["path"].startswith(PREFIX):
            await self._engine(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._answer_post(scope, receive, send)
        else:
            await self._own(scope, receive, send)

    async def _answer_post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request below `/_ttc/` when its body is complete, so that a slow client occupies no handler."""
        incoming = RawRequest(scope, receive, self._memory)
        try:
            await incoming.read_ahead(_READ_AHEAD)
            await self._own(scope, incoming.replayed(), send)
        except ClientDisconnected:
            pass
        except TooManyRequests as error:
            await json_response(Request(scope), error.body(), error.status)(scope, receive, send)
        finally:
            incoming.forget()


def _load_encoder(name: str, cache_dir: Path) -> Encoder:
    from es_ttc.encoders import load_encoder  # imports the backends

    encoder: Encoder = load_encoder(name, cache_dir=cache_dir)
    return encoder


def _load_variant(identity: EncoderIdentity, name: str, cache_dir: Path) -> Encoder:
    from es_ttc.index.mappings.encoder import load_encoder_for

    return load_encoder_for(identity, name, cache_dir=cache_dir)

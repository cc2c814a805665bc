"""The endpoints below `/_ttc/`: one table, from which their routes and their OpenAPI description (3.1) are made."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from inspect import getdoc
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from es_ttc import __version__
from es_ttc.engine.versions import dotted
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.errors import EngineUnavailable
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.rescorers import compiled, registry
from es_ttc.rewriters import registry as rewriters
from es_ttc.serving.admin.endpoint import TOKEN_HEADER, carries_one_of, json_response, received
from es_ttc.serving.admin.explain import Explaining, ExplainRequest, Explanation
from es_ttc.serving.admin.jobs import CHANGES, JobsApi
from es_ttc.serving.admin.models import EmbeddingsRequest, ModelServer, RerankRequest, TextsRequest
from es_ttc.serving.admin.search_schema import search_body_schema
from es_ttc.serving.admin.sidecar import MEDIA_TYPE as CBOR
from es_ttc.serving.admin.sidecar import PROTOCOL_VERSION, EncodeRequest, ScoreRequest, Sidecar
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.metrics import CONTENT_TYPE
from es_ttc.serving.search import Searches

Schema = dict[str, Any]

JSON_TYPE = "application/json"
_READY_SECONDS = 2.0

_ENGINE, MODEL_TOKEN, SIDECAR_TOKEN = "engine", "model_token", "sidecar_token"
_ADMIN, _ADMIN_HEADER = "admin_token", "admin_token_header"
_SECURITY: Schema = {
    _ENGINE: {"type": "http", "scheme": "basic", "description": "The caller's credentials in the engine, of any kind."},
    MODEL_TOKEN: {"type": "http", "scheme": "bearer", "description": "The gateway's `model_token`, if it has one."},
    _ADMIN: {
        "type": "http",
        "scheme": "bearer",
        "description": "The gateway's `admin_token`, if it has one; not for the endpoints of `admin_public`.",
    },
    _ADMIN_HEADER: {
        "type": "apiKey",
        "in": "header",
        "name": TOKEN_HEADER.decode(),
        "description": "The same, for callers whose `Authorization` is for the engine.",
    },
    SIDECAR_TOKEN: {"type": "http", "scheme": "bearer", "description": "The gateway's `sidecar_token`."},
}


class Cause(BaseModel):
    """Why a request failed."""

    type: str = Field(description="Kind of the error.")
    reason: str = Field(description="One sentence: the field, the value, the fix.")


class ErrorCause(Cause):
    """Why a request failed, in the engines' form."""

    root_cause: list[Cause] = Field(description="The same again, where the engines' clients look for it.")


class ErrorResponse(BaseModel):
    """An error, in the engines' form."""

    error: ErrorCause
    status: int = Field(ge=400, le=599, description="The status of the response.")


class EngineStatus(BaseModel):
    """The engine behind the gateway."""

    product: str | None = Field(description="Its product; null where it does not answer.")
    version: str | None = Field(None, description="Its version, where the caller may read it.")
    supported: bool | None = Field(None, description="Whether searches with a `ttc` section are answered.")


class OnDemandStatus(BaseModel):
    """Encoding on demand, in all processes of this gateway; indices are those that it has seen searched."""

    queue: int = Field(description="Documents that wait.")
    windows: int = Field(description="Recent windows, at most 1,000 of each process.")
    complete_windows: int = Field(description="Those of them in which every document had its features.")
    index_documents: int = Field(description="Documents of the indices.")
    encoded_documents: int = Field(description="Those of them that need no encoding.")


class Info(BaseModel):
    """The gateway's version, methods and limits."""

    name: Literal["es-ttc gateway"]
    version: str = Field(description="Of es-ttc.")
    engine: EngineStatus
    methods: list[str] = Field(description="Methods of `rescore`.")
    rerankers: list[str] = Field(description="Names of the configured rerankers.")
    rewriters: list[str] = Field(description="Methods of `query`.")
    llm: bool = Field(description="Whether a language model is configured.")
    encoders: list[str] = Field(description="Names of the encoders that may be loaded.")
    score_protocol: int = Field(description="Version of the protocol of the engines' plugin.")
    loops: Literal["compiled", "numpy"] = Field(description="What computes scores.")
    max_window: int = Field(description="Maximum of `window_size`.")
    scoring_timeout_ms: float = Field(description="Timeout of a section that names none.")
    on_demand: OnDemandStatus


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether searches can be rescored."""

    ready: bool = Field(description="Whether all of it is.")
    engine: bool = Field(description="Whether the engine answers.")
    encoder: bool = Field(description="Whether an encoder is loaded.")
    unranked: dict[str, str] = Field(
        default_factory=dict,
        description="Indices, side indices too, that could not be ranked when the gateway started, because it lacks "
        "the encoder that they were encoded by; and that encoder. Only with the `admin_token`, if there is one.",
    )


class RankedText(BaseModel):
    """A text of the request with its score."""

    index: int = Field(ge=0, description="Its place in the request.")
    relevance_score: float
    document: dict[str, str] | None = Field(None, description="The text, if `return_documents` asks for it.")


class RankedTexts(BaseModel):
    """The best texts, best first, in Cohere's and Jina's form."""

    id: str
    model: str
    results: list[RankedText]


class ScoredText(BaseModel):
    """A text of the request with its score, in the form of text-embeddings-inference."""

    index: int = Field(ge=0, description="Its place in the request.")
    score: float
    text: str | None = Field(None, description="The text, if `return_text` asks for it.")


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int = Field(ge=0, description="Place of its text in the request.")
    embedding: list[float] | str = Field(description="Numbers, or float32 bytes in base64.")


class ChargedTokens(BaseModel):
    """Tokens that are charged: none."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors of texts in OpenAI's form."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: ChargedTokens


class JobView(BaseModel):
    """A job with its progress; a job that encodes has other keys than one that enriches."""

    model_config = ConfigDict(extra="allow")

    id: str
    index: str = Field(description="The index.")
    state: str = Field(description="Its state, in one word.")
    reason: str = Field(description="Why it paused by itself; else empty.")
    waits_for: str | None = Field(description="The job that is processed first.")
    progress: dict[str, Any] = Field(description="Documents done, failed and left, and the estimated time.")


class JobList(BaseModel):
    """All jobs."""

    jobs: list[JobView]


class Endpoints:
    """Answers requests about the gateway itself."""

    def __init__(self, gateway: Gateway, warm: Callable[[], bool]) -> None:
        self._gateway = gateway
        self._warm = warm

    async def info(self, request: Request) -> Response:
        """Return the gateway's version, methods and limits."""
        settings, upstream = self._gateway.settings, self._gateway.upstream
        engine: dict[str, object] = {"product": None}
        with suppress(EngineUnavailable):
            engine = {"product": await upstream.product()}
            if (version := await upstream.version(request.headers.raw)) is not None:
                number = "serverless" if version.serverless else dotted(version.numbers)
                engine |= {"version": number, "supported": not version.too_old}
        answer = {
            "name": "es-ttc gateway",
            "version": __version__,
            "engine": engine,
            "methods": sorted([*registry.names(), *STRATEGIES]),
            "rerankers": sorted(settings.rerankers),
            "rewriters": rewriters.names(),
            "llm": settings.llm_url is not None,
            "encoders": list(self._gateway.encoders.names),
            "score_protocol": PROTOCOL_VERSION,
            "loops": "compiled" if compiled.enabled() else "numpy",
            "max_window": settings.max_window,
            "scoring_timeout_ms": settings.scoring_timeout_ms,
            "on_demand": self._gateway.metrics.on_demand(),
        }
        return json_response(request, answer)

    async def health(self, request: Request) -> Response:
        """Return that the process is alive."""
        return json_response(request, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Return whether searches can be rescored.

        The engine answers, and the encoders of its indices are loaded.
        """
        engine = await self._gateway.upstream.reachable(_READY_SECONDS)
        ready = engine and self._warm()
        answer: dict[str, Any] = {"ready": ready, "engine": engine, "encoder": self._gateway.encoders.ready}
        if self._may_see_names(request) and self._gateway.warm_up.unranked:
            answer["unranked"] = self._gateway.warm_up.unranked
        return json_response(request, answer, 200 if ready else 503)

    def _may_see_names(self, request: Request) -> bool:
        """Return whether a request carries the admin token, if there is one: the probe itself needs none."""
        token = self._gateway.settings.admin_token
        return token is None or carries_one_of(received(request), token)

    async def metrics(self, _: Request) -> Response:
        """Return metrics for Prometheus."""
        return Response(self._gateway.metrics.text(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Return this description."""
        return json_response(request, openapi())

    async def search_schema(self, request: Request) -> Response:
        """Return the JSON Schema of `ttc` sections."""
        return json_response(request, search_body_schema())


def _parameter(name: str, place: str, description: str, schema: Schema, **more: Any) -> Schema:
    return {"name": name, "in": place, "description": description, "schema": schema, **more}


_JOB = _parameter("job", "path", "Id of the job.", {"type": "string", "minLength": 1}, required=True)
_CHANGE = _parameter("change", "path", "What is done with it.", {"type": "string", "enum": [*CHANGES]}, required=True)
_STATES = _parameter(
    "state",
    "query",
    "Only jobs in one of these states.",
    {"type": "array", "items": {"type": "string", "enum": [str(state) for state in JobState]}},
    style="form",
    explode=False,
)
_PRETTY_TEXT = "With `true` or no value: write the response's JSON on several lines."
_PRETTY = _parameter("pretty", "query", _PRETTY_TEXT, {}, allowEmptyValue=True)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path; the handler is a method of one of the parts in :func:`routes`."""

    method: str
    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    answers: tuple[Any, ...] = ()
    body: tuple[Any, ...] = ()
    media_type: str = JSON_TYPE
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()
    security: str | None = None

    @property
    def summary(self) -> str:
        """What it does, in one sentence."""
        return (getdoc(self.handler) or "").partition("\n")[0]


_RERANK = (ModelServer.rerank, (RankedTexts, list[ScoredText]), (RerankRequest, TextsRequest))
_VERSIONS = ("", "v1/", "v2/")  # clients of Cohere, Jina and vLLM append these to their base URL
OPERATIONS = (
    Operation("get", "/_ttc/", Endpoints.info, (Info,)),
    Operation("get", "/_ttc/health", Endpoints.health, (Health,)),
    Operation("get", "/_ttc/ready", Endpoints.ready, (Readiness,), statuses=(503,)),
    Operation("get", "/_ttc/metrics", Endpoints.metrics, media_type="text/plain"),
    Operation("get", "/_ttc/openapi.json", Endpoints.openapi, (dict[str, Any],)),
    Operation("get", "/_ttc/search.schema.json", Endpoints.search_schema, (dict[str, Any],)),
    *(Operation("post", f"/_ttc/{version}rerank", *_RERANK, security=MODEL_TOKEN) for version in _VERSIONS),
    Operation(
        "post", "/_ttc/v1/embeddings", ModelServer.embed, (Embeddings,), (EmbeddingsRequest,), security=MODEL_TOKEN
    ),
    Operation("post", "/_ttc/score", Sidecar.score, (), (ScoreRequest,), CBOR, security=SIDECAR_TOKEN),
    Operation("post", "/_ttc/encode", Sidecar.encode, (), (EncodeRequest,), CBOR, security=SIDECAR_TOKEN),
    Operation("post", "/_ttc/explain", Explaining.explain, (Explanation,), (ExplainRequest,), security=_ENGINE),
    Operation("get", "/_ttc/jobs", JobsApi.list, (JobList,), parameters=(_STATES,), security=_ENGINE),
    Operation("post", "/_ttc/jobs", JobsApi.submit, (JobView,), (JobRequest,), security=_ENGINE),
    Operation("get", "/_ttc/jobs/{job}", JobsApi.show, (JobView,), parameters=(_JOB,), security=_ENGINE),
    Operation(
        "post",
        "/_ttc/jobs/{job}/{change}",
        JobsApi.change,
        (JobView,),
        parameters=(_JOB, _CHANGE),
        security=_ENGINE,
    ),
)


def routes(gateway: Gateway, searches: Searches, warm: Callable[[], bool]) -> list[Route]:
    """Return the routes of all operations, with and without a slash at their end.

    `warm` tells whether everything that searches need is loaded.
    """
    parts = {type(part).__name__: part for part in (
        Endpoints(gateway, warm), ModelServer(gateway), Sidecar(gateway), JobsApi(gateway),
        Explaining(gateway, searches),
    )}  # fmt: skip
    return [
        Route(
            path,
            partial(one.handler, parts[one.handler.__qualname__.partition(".")[0]]),
            methods=[one.method.upper()],
        )
        for one in OPERATIONS
        for path in {one.path, f"{one.path.rstrip('/')}/"}
    ]


@cache
def openapi() -> Schema:
    """Return the description."""
    types = {one for operation in OPERATIONS for one in (*operation.answers, *operation.body)}
    mode: Literal["validation"] = "validation"
    adapters = [(one, mode, TypeAdapter(one)) for one in (*sorted(types, key=repr), ErrorResponse)]
    schemas, defined = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    named = {one: schemas[one, mode] for one, _, _ in adapters}
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "es-ttc gateway",
            "version": __version__,
            "description": "The gateway's own endpoints. All other requests are the engine's.",
        },
        "paths": paths,
        "components": {"schemas": defined["$defs"], "securitySchemes": _SECURITY},
    }


def _described(operation: Operation, named: Mapping[Any, Schema]) -> Schema:
    media_type = operation.media_type
    words = operation.path.removeprefix("/_ttc/").translate(str.maketrans("/.", "__", "{}"))
    answer = {"description": "Success.", "content": {media_type: {"schema": _any_of(operation.answers, named)}}}
    failure = {"description": "An error.", "content": {JSON_TYPE: {"schema": named[ErrorResponse]}}}
    described: Schema = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{words or 'info'}",
        "parameters": [*operation.parameters, *([_PRETTY] if media_type == JSON_TYPE else [])],
        "responses": {
            "200": answer,
            **{str(status): {**answer, "description": "Not ready."} for status in operation.statuses},
            "default": failure,
        },
    }
    if operation.body:
        content = {media_type: {"schema": _any_of(operation.body, named)}}
        described["requestBody"] = {"required": True, "content": content}
    described["security"] = [{name: [] for name in together} for together in _security(operation.security)]
    return described


def _security(own: str | None) -> list[tuple[str, ...]]:
    """Return the alternatives of what a request carries; it depends on the settings which of them is wanted."""
    if own is None:
        return [(_ADMIN,), (_ADMIN_HEADER,), ()]
    if own == SIDECAR_TOKEN:
        return [(own,), ()]
    return [(own,), (_ADMIN,), ()] if own == MODEL_TOKEN else [(own,), (own, _ADMIN_HEADER), (_ADMIN,), ()]


def _any_of(types: tuple[Any, ...], named: Mapping[Any, Schema]) -> Schema:
    if not types:
        return {}
    return named[types[0]] if len(types) == 1 else {"anyOf": [named[one] for one in types]}

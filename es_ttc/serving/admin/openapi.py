"""The OpenAPI description (3.1) of the endpoints below `/_ttc/`, generated from the models that validate requests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from es_ttc import __version__
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.service import JobRequest
from es_ttc.serving.admin.endpoint import TOKEN_HEADER
from es_ttc.serving.admin.jobs import CHANGES
from es_ttc.serving.admin.models import EmbeddingsRequest, RerankRequest, TextsRequest
from es_ttc.serving.admin.sidecar import MEDIA_TYPE as CBOR
from es_ttc.serving.admin.sidecar import EncodeRequest, ScoreRequest

Schema = dict[str, Any]

JSON = "application/json"
TEXT = "text/plain"

_ENGINE, MODEL_TOKEN, SIDECAR_TOKEN = "engine", "model_token", "sidecar_token"
_ADMIN, _ADMIN_HEADER = "admin_token", "admin_token_header"
_SECURITY: Schema = {
    _ENGINE: {"type": "http", "scheme": "basic", "description": "The caller's credentials in the engine, of any kind."},
    MODEL_TOKEN: {"type": "http", "scheme": "bearer", "description": "The gateway's `model_token`, if it has one."},
    _ADMIN: {
        "type": "http",
        "scheme": "bearer",
        "description": "The gateway's `admin_token`, if it has one; not for the endpoints of `admin_open`.",
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


class Engine(BaseModel):
    """The engine behind the gateway."""

    product: str | None = Field(description="Its product; null where it does not answer.")
    version: str | None = Field(None, description="Its version, where the caller may read it.")
    supported: bool | None = Field(None, description="Whether searches with a `ttc` section are answered.")


class Info(BaseModel):
    """The gateway's version, methods and limits."""

    name: Literal["es-ttc gateway"]
    version: str = Field(description="Of es-ttc.")
    engine: Engine
    methods: list[str] = Field(description="Methods of `rescore`.")
    rerankers: list[str] = Field(description="Names of the configured rerankers.")
    rewriters: list[str] = Field(description="Methods of `query`.")
    llm: bool = Field(description="Whether a language model is configured.")
    encoders: list[str] = Field(description="Names of the encoders that may be loaded.")
    score_protocol: int = Field(description="Version of the protocol of the engines' plugin.")
    loops: Literal["compiled", "numpy"] = Field(description="What computes scores.")
    max_window: int = Field(description="Maximum of `window_size`.")
    default_timeout_ms: float = Field(description="Timeout of a section that names none.")


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether searches can be rescored."""

    ready: bool = Field(description="Whether all of it is.")
    engine: bool = Field(description="Whether the engine answers.")
    encoder: bool = Field(description="Whether an encoder is loaded.")


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


class Usage(BaseModel):
    """Tokens that are charged: none."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """Vectors of texts in OpenAI's form."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: Usage


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


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    answers: tuple[Any, ...] = ()
    body: tuple[Any, ...] = ()
    media_type: str = JSON
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()
    security: str | None = None


def _path_parameter(name: str, description: str, values: Iterable[str] = ()) -> Schema:
    schema: Schema = {"type": "string", "minLength": 1}
    if listed := list(values):
        schema = {"type": "string", "enum": listed}
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


_JOB = _path_parameter("job", "Id of the job.")
_CHANGE = _path_parameter("change", "What is done with it.", CHANGES)
_STATES: Schema = {
    "name": "state",
    "in": "query",
    "description": "Only jobs in one of these states.",
    "style": "form",
    "explode": False,
    "schema": {"type": "array", "items": {"type": "string", "enum": [str(state) for state in JobState]}},
}


_PRETTY: Schema = {
    "name": "pretty",
    "in": "query",
    "description": "With any value, or none: write the response's JSON on several lines.",
    "allowEmptyValue": True,
    "schema": {},
}


def _rerank(path: str) -> Operation:
    return Operation(
        "post",
        path,
        "Score texts, in Cohere's and Jina's form, or in that of text-embeddings-inference.",
        (RankedTexts, list[ScoredText]),
        (RerankRequest, TextsRequest),
        security=MODEL_TOKEN,
    )


OPERATIONS = (
    Operation("get", "/_ttc/", "Return the gateway's version, methods and limits.", (Info,)),
    Operation("get", "/_ttc/health", "Return that the process is alive.", (Health,)),
    Operation("get", "/_ttc/ready", "Return whether searches can be rescored.", (Readiness,), statuses=(503,)),
    Operation("get", "/_ttc/metrics", "Return metrics for Prometheus.", media_type=TEXT),
    Operation("get", "/_ttc/openapi.json", "Return this description.", (dict[str, Any],)),
    Operation("get", "/_ttc/search.schema.json", "Return the JSON Schema of `ttc` sections.", (dict[str, Any],)),
    *map(_rerank, ("/_ttc/rerank", "/_ttc/v1/rerank", "/_ttc/v2/rerank")),
    Operation(
        "post",
        "/_ttc/v1/embeddings",
        "Return the vectors of texts, in OpenAI's form.",
        (Embeddings,),
        (EmbeddingsRequest,),
        security=MODEL_TOKEN,
    ),
    Operation(
        "post",
        "/_ttc/score",
        "Score a window that an engine with the plugin has found (docs/reference/sidecar-protocol.md).",
        body=(ScoreRequest,),
        media_type=CBOR,
        security=SIDECAR_TOKEN,
    ),
    Operation(
        "post",
        "/_ttc/encode",
        "Return the features of documents that an engine with the plugin is about to index.",
        body=(EncodeRequest,),
        media_type=CBOR,
        security=SIDECAR_TOKEN,
    ),
    Operation("get", "/_ttc/jobs", "List the jobs.", (JobList,), parameters=(_STATES,), security=_ENGINE),
    Operation(
        "post",
        "/_ttc/jobs",
        "Submit a job that enriches an index.",
        (JobView,),
        (JobRequest,),
        security=_ENGINE,
    ),
    Operation("get", "/_ttc/jobs/{job}", "Return one job.", (JobView,), parameters=(_JOB,), security=_ENGINE),
    Operation(
        "post",
        "/_ttc/jobs/{job}/{change}",
        "Pause, resume, cancel or retry a job.",
        (JobView,),
        parameters=(_JOB, _CHANGE),
        security=_ENGINE,
    ),
)
"""Every operation; a test compares them with the routes."""


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
    """Return the description of one operation."""
    content = {operation.media_type: {"schema": _any_of(operation.answers, named)}}
    answer = {"description": "Success.", "content": content}
    failure = {"description": "An error.", "content": {JSON: {"schema": named[ErrorResponse]}}}
    described: Schema = {
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "parameters": [*operation.parameters, *([_PRETTY] if operation.media_type == JSON else [])],
        "responses": {
            "200": answer,
            **{str(status): {**answer, "description": "Not ready."} for status in operation.statuses},
            "default": failure,
        },
    }
    if operation.body:
        schema = _any_of(operation.body, named)
        described["requestBody"] = {"required": True, "content": {operation.media_type: {"schema": schema}}}
    described["security"] = [{name: [] for name in together} for together in _security(operation)]
    return described


def _security(operation: Operation) -> list[tuple[str, ...]]:
    """Return the alternatives of what a request carries; it depends on the settings which of them is wanted."""
    match operation.security:
        case str(own) if own == SIDECAR_TOKEN:
            return [(own,), ()]
        case str(own) if own == MODEL_TOKEN:
            return [(own,), (_ADMIN,), ()]
        case str(own):
            return [(own,), (own, _ADMIN_HEADER), (_ADMIN,), ()]
        case None:
            return [(_ADMIN,), (_ADMIN_HEADER,), ()]


def token_of_path() -> dict[str, str | None]:
    """Return by path which credentials or token its operations check themselves."""
    return {operation.path: operation.security for operation in OPERATIONS}


def _any_of(types: tuple[Any, ...], named: Mapping[Any, Schema]) -> Schema:
    if not types:
        return {}
    return named[types[0]] if len(types) == 1 else {"anyOf": [named[one] for one in types]}


def _identifier(operation: Operation) -> str:
    words = operation.path.removeprefix("/_ttc/").translate(str.maketrans("/.", "__", "{}"))
    return f"{operation.method}_{words or 'info'}"

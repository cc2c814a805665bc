"""The responses of the endpoints below `/_ttc/`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


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

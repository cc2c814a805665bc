"""Requests to a language model and its replies."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema for answers, for endpoints that can enforce one.

    Close its objects (``additionalProperties: false``): some endpoints otherwise let a model add keys until its tokens
    are spent.
    """

    name: str
    schema: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A key that is the same for equal schemas."""
        return hashlib.sha256(orjson.dumps(self.schema, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the endpoint counts them; 0 if it does not report them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    finish: str
    usage: Usage
    model: str
    held: bool
    seconds: float


class LanguageModel(Protocol):
    """A language model: behind an endpoint (:class:`~es_ttc.llm.client.LlmClient`), or in this process."""

    api: Literal["chat", "completions"]

    @property
    def url(self) -> str:
        """Its address, for messages."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def models(self, *, seconds: float | None = None) -> list[str]:
        """Return the names of the available models; also used as a health check."""

    async def model(self, *, seconds: float | None = None) -> str:
        """Return the model's name."""

    async def complete(
        self, prompt: str, *, schema: JsonSchema | None = None, seconds: float | None = None, **options: Any
    ) -> Reply:
        """Return the model's continuation of a text."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonSchema | None = None,
        seconds: float | None = None,
        **options: Any,
    ) -> Reply:
        """Return the model's answer as an assistant."""

"""What goes to a language model and what comes back."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: Who says it.
        content: What is said.
    """

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The form that an answer must have, where the endpoint can hold a model to one.

    Attributes:
        name: Of the form; letters, digits, ``_`` and ``-``.
        schema: A JSON schema. Close its objects (``additionalProperties: false``): some endpoints else let a model add
            keys until its tokens are spent.
    """

    name: str
    schema: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The same for equal schemas."""
        return hashlib.sha256(orjson.dumps(self.schema, option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, as the endpoint counts them; 0 where it does not say.

    Attributes:
        prompt_tokens: Read by the model.
        completion_tokens: Written by it.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer.

    Attributes:
        text: What it wrote; may be empty.
        finish: Why it ended: ``stop``, or ``length`` where its tokens were spent, or the endpoint's own word.
        usage: Tokens.
        model: The name that the endpoint gives the model.
        held: Whether the endpoint was asked to hold the answer to a schema and accepted. Some accept and do not do it:
            read the text with tolerance all the same.
        seconds: From the question to the answer, waiting and repetitions included.
    """

    text: str
    finish: str
    usage: Usage
    model: str
    held: bool
    seconds: float


class LanguageModel(Protocol):
    """A model that is asked: behind an endpoint (:class:`~es_ttc.llm.client.LlmClient`), or in this process.

    Attributes:
        api: How it is asked by those who have no form of their own.
    """

    api: Literal["chat", "completions"]

    @property
    def url(self) -> str:
        """Where it is; for people."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def models(self, *, seconds: float | None = None) -> list[str]:
        """Return the names of the models there are; also the way to ask for a sign of life.

        Raises:
            LlmError: There is none.
        """
        ...

    async def model(self, *, seconds: float | None = None) -> str:
        """Return the model's name.

        Raises:
            ConfigurationError: It does not follow from the settings.
            LlmError: Who knows it does not answer.
        """
        ...

    async def complete(
        self, prompt: str, *, schema: JsonSchema | None = None, seconds: float | None = None, **asked: Any
    ) -> Reply:
        """Let the model continue a text.

        Raises:
            LlmError: No answer, or a refusal; its ``failure`` says which.
        """
        ...

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonSchema | None = None,
        seconds: float | None = None,
        **asked: Any,
    ) -> Reply:
        """Let the model answer as an assistant.

        Raises:
            LlmError: No answer, or a refusal; its ``failure`` says which.
        """
        ...

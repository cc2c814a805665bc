"""A language model as a reranker: it rates each passage from 0 to 100 (SIRA's pick), or puts a few in order.

Passages without a readable rating, or missing in an order, follow the others in their previous order.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from es_ttc.errors import ConfigurationError
from es_ttc.llm import JsonSchema, LlmClient, Prompt, first_json
from es_ttc.llm.prompts import checked_prompt, read_prompt
from es_ttc.reranking.rerankers.base import Passage, Reranker, RerankerError, RerankerSettings
from es_ttc.reranking.rerankers.cost import tell
from es_ttc.settings import HeaderSecret, LlmSettings

PromptForm = Literal["pointwise", "listwise"]

POINTWISE = "llm"
LISTWISE = "llm_listwise"

_PLACEHOLDERS: Mapping[PromptForm, frozenset[str]] = {
    "pointwise": frozenset({"query", "document"}),
    "listwise": frozenset({"query", "passages"}),
}
_RATING = JsonSchema(
    "rating",
    {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 100}},
        "required": ["score"],
        "additionalProperties": False,
    },
)
_ORDER = JsonSchema(
    "order",
    {
        "type": "object",
        "properties": {"order": {"type": "array", "items": {"type": "integer"}, "maxItems": 100}},
        "required": ["order"],
        "additionalProperties": False,
    },
)
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SECOND_TEMPERATURE = 0.5
_TOKENS_A_RATING = 20
_TOKENS_A_POSITION = 6


class LlmRerankerSettings(RerankerSettings):
    """Settings of a language model as a reranker. Default of each: that of the gateway's model (`llm_*`)."""

    form: PromptForm = Field(
        "pointwise",
        description="pointwise: rate each document from 0 to 100. listwise: put the documents of a window in order.",
    )
    prompt: Path | None = Field(
        None, description="Prompt file with {{query}} and {{document}}, or for listwise {{query}} and {{passages}}."
    )
    url: str | None = Field(None, description="Base URL of an OpenAI-compatible endpoint.")
    model: str | None = Field(None, description="Name of the model at the endpoint.")
    api_key: HeaderSecret | None = Field(None, description="Key of the endpoint.")
    api: Literal["chat", "completions"] | None = Field(
        None, description="API of the model: chat, or completions for base models."
    )
    timeout_ms: int = Field(30_000, gt=0, description="Timeout of one call, including its repetitions, in ms.")
    batch: int = Field(1, ge=1, le=1000, description="Number of documents per call; each is one request.")
    at_once: int = Field(8, ge=1, le=256, description="Maximum number of concurrent calls, of all searches together.")
    max_characters: int = Field(2000, ge=1, le=1_000_000, description="Maximum number of characters per document.")
    prompt_characters: int = Field(
        24_000,
        ge=1000,
        le=10_000_000,
        description="Maximum number of characters of all documents in one listwise request.",
    )


class Llm:
    """A language model: ratings from 0 to 100, or orders."""

    name: ClassVar[str] = "llm"
    Settings: ClassVar[type[RerankerSettings]] = LlmRerankerSettings

    def make(self, settings: LlmRerankerSettings) -> Reranker:
        """Return a reranker that calls the model; nothing is sent yet."""
        given: dict[str, Any] = {"llm_url": settings.url, "llm_model": settings.model, "llm_api": settings.api}
        given["llm_api_key"] = settings.api_key
        return reranker_of(settings, LlmSettings(**{key: one for key, one in given.items() if one is not None}))


def reranker_of(settings: LlmRerankerSettings, model: LlmSettings) -> "PointwiseLlm | ListwiseLlm":
    """Return a reranker that calls a model; see :meth:`Llm.make`."""
    if model.llm_url is None:
        raise ConfigurationError(
            "this reranker asks a language model, and the gateway has none: start it with ES_TTC_LLM_URL (llm_url) set "
            "to an OpenAI-compatible endpoint"
        )
    return (PointwiseLlm if settings.form == "pointwise" else ListwiseLlm)(settings, model)


class _LlmReranker:
    """The parts that both forms share: the model, the prompt, the identity."""

    form: ClassVar[PromptForm]

    def __init__(self, settings: LlmRerankerSettings, model: LlmSettings) -> None:
        self.settings: RerankerSettings = settings
        self._client = LlmClient(model)
        self._prompt = _prompt(settings, self._client.api)
        parts = (self._client.url, model.llm_model or "", self._client.api, self._prompt.version)
        self.identity = f"llm:{self.form}:{':'.join(parts)}:{settings.max_characters}:{settings.prompt_characters}"

    async def close(self) -> None:
        """Close connections."""
        await self._client.endpoint.close()

    async def _complete(self, prompt: str, schema: JsonSchema, max_tokens: int, temperature: float) -> str:
        continues = self._client.api == "completions"
        reply = await self._client.ask(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            stop=("\n",) if continues else (),
            schema=None if continues else schema,
        )
        tell(prompt_tokens=reply.usage.prompt_tokens, completion_tokens=reply.usage.completion_tokens)
        return _THOUGHTS.sub("", reply.text)


class PointwiseLlm(_LlmReranker):
    """Rates each passage from 0 to 100. The score is (rating + 1) / 101, and 0 if no rating can be read."""

    form = "pointwise"

    async def scores(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Return one score for each passage."""
        return list(await asyncio.gather(*(self._score(query, passage) for passage in passages)))

    async def _score(self, query: str, passage: Passage) -> float:
        prompt = self._prompt.render(query=_line(query), document=_line(passage.text))
        found = rating(await self._complete(prompt, _RATING, _TOKENS_A_RATING, 0.0))
        return 0.0 if found is None else (found + 1) / 101


class ListwiseLlm(_LlmReranker):
    """Puts the passages of a window in order."""

    form = "listwise"

    def __init__(self, settings: LlmRerankerSettings, model: LlmSettings) -> None:
        super().__init__(settings, model)
        self._characters = settings.prompt_characters

    async def order(self, query: str, passages: Sequence[Passage]) -> list[int]:
        """Return positions, best first, as in the model's answer; an answer without any is requested once more."""
        each = max(1, self._characters // max(1, len(passages)))
        numbered = [f"[{place}] {_line(passage.text)[:each]}" for place, passage in enumerate(passages, 1)]
        prompt = self._prompt.render(query=_line(query), passages="\n".join(numbered))
        tokens = _TOKENS_A_RATING + _TOKENS_A_POSITION * len(passages)
        for temperature in (0.0, _SECOND_TEMPERATURE):
            found = ranked_positions(await self._complete(prompt, _ORDER, tokens, temperature), len(passages))
            if found:
                return found
        raise RerankerError("the language model answered twice without an order of the passages")


def rating(text: str) -> float | None:
    """Return the rating in an answer, 0 to 100; None if there is none in this range.

    Examples:
        >>> rating('{"score": 80}'), rating("Rating: 80/100"), rating("good"), rating("500")
        (80.0, 80.0, None, None)
    """
    found = first_json(text)
    value = found.get("score") if isinstance(found, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        match = _NUMBER.search(text)
        value = None if match is None else float(match[0])
    return float(value) if value is not None and 0 <= value <= 100 else None


def ranked_positions(text: str, passages: int) -> list[int]:
    """Return the positions in an answer, from 0, in its order, each once, without unknown numbers.

    Examples:
        >>> positions('{"order": [2, 1, 2, 9]}', 3), positions("[3] > [1]", 3), positions("I cannot say", 3)
        ([1, 0], [2, 0], [])
    """
    found = first_json(text)
    listed = found.get("order") if isinstance(found, dict) else None
    numbers: Sequence[Any] = listed if isinstance(listed, list) else _NUMBER.findall(text)
    named = [int(number) - 1 for number in map(str, numbers) if number.isdecimal() and len(number) < 10]
    return [place for place in dict.fromkeys(named) if 0 <= place < passages]


def of_the_gateway(model: LlmSettings) -> dict[str, Callable[[], Reranker]]:
    """Return the factories of the rerankers that use the gateway's own model, by the names that requests use."""
    return {
        POINTWISE: lambda: reranker_of(LlmRerankerSettings(), model),
        LISTWISE: lambda: reranker_of(LlmRerankerSettings(form="listwise", at_once=2), model),
    }


def _prompt(settings: LlmRerankerSettings, api: str) -> Prompt:
    if settings.prompt is not None:
        return read_prompt(settings.prompt, _PLACEHOLDERS[settings.form])
    name = f"{settings.form}.{api}.txt"
    text = files("es_ttc.reranking.rerankers").joinpath("judgements", name).read_text(encoding="utf-8")
    return checked_prompt(name, text, _PLACEHOLDERS[settings.form])


def _line(text: str) -> str:
    """Return a text as one line, because prompts for base models end a part with a line."""
    return " ".join(text.split())

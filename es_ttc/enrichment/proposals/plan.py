"""The plan of an enrichment: a prompt, a model, parameters. Equal plans have equal keys, in every process.

There are two keys. The key of the request, without the document, identifies stored proposals. The key of the whole plan
marks enriched documents.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from es_ttc.common.configuration_files import read_text
from es_ttc.enrichment.proposals.document_frequency import DEFAULT_TAU
from es_ttc.enrichment.proposals.parsing import phrases_schema
from es_ttc.enrichment.proposals.phrases import MAX_PHRASE_WORDS
from es_ttc.errors import ConfigurationError
from es_ttc.llm.prompts import Prompt, checked_prompt

PLACEHOLDERS = ("document", "most")
DEFAULT_PROMPTS = {"chat": "general", "completions": "base"}  # the default prompt for each API of a model (`llm_api`)
_PROMPTS = resources.files("es_ttc.enrichment.proposals") / "prompts"

SCHEMA = phrases_schema(30)
SCHEMA_OF_QUERIES = phrases_schema(30, longest=150)


class Parameters(BaseModel):
    """The parameters of a plan, in addition to prompt and model."""

    temperature: float = Field(0.0, ge=0, le=2, description="Sampling temperature.")
    answer_tokens: int = Field(256, ge=8, le=8192, description="Maximum length of an answer, in tokens.")
    characters: int = Field(
        4000, ge=100, le=200_000, description="Maximum number of characters of a document that the model reads."
    )
    most: int = Field(10, ge=1, le=50, description="Maximum number of phrases per document.")
    most_words: int = Field(MAX_PHRASE_WORDS, ge=1, le=5, description="Maximum number of words of a phrase.")
    whole: bool = Field(
        False,
        description="Write whole proposals, as doc2query writes queries; only the minimum similarity filters them, as "
        "in doc2query--.",
    )
    tau: float = Field(
        DEFAULT_TAU, description="Maximum share of documents that may have a phrase, 0 to 1; 1 keeps all phrases."
    )
    min_similarity: float | None = Field(
        None,
        ge=-1,
        le=1,
        description="Minimum cosine of a phrase's vector with its document's, by the index's encoder. A dry run shows "
        "which share of the phrases reaches which cosine. Default: none.",
    )


class Plan(Parameters):
    """The plan of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    text: str
    model: str
    api: Literal["chat", "completions"] = "chat"
    encoder: str | None = None
    refreshed: int = Field(0, ge=0)

    @cached_property
    def template(self) -> Prompt:
        """The prompt, with placeholders for the document and the number of phrases."""
        return checked_text(self.prompt, self.text)

    @cached_property
    def asked(self) -> str:
        """Key of the request to the model, without the document: 16 hex digits."""
        names = ("model", "api", "temperature", "answer_tokens", "characters", "most")
        return _key({"prompt": self.template.version, **{name: getattr(self, name) for name in names}})

    @cached_property
    def key(self) -> str:
        """Key of the whole plan: 16 hex digits."""
        parts = {"asked": self.asked, "most_words": self.most_words, "tau": self.tau}
        if self.min_similarity is not None:
            parts |= {"min_similarity": self.min_similarity, "encoder": self.encoder}
        if self.whole:
            parts |= {"whole": True}
        if self.refreshed:
            parts |= {"refreshed": self.refreshed}
        return _key(parts)

    def question(self, document: str) -> str:
        """Return the request to the model for a document."""
        shown = document[: self.characters].strip()
        if self.api == "completions":
            shown = " ".join(shown.split())  # a blank line ends an example
        return self.template.render(document=shown, most=str(self.most)).rstrip()


def prompt_of(name: str) -> Prompt:
    """Return a built-in prompt by its name, or a user's own by the path of its file."""
    if name in prompt_names():
        return checked_text(name, (_PROMPTS / f"{name}.txt").read_text(encoding="utf-8"))
    path = Path(name)
    if not path.is_file():
        raise ConfigurationError(
            f"there is no prompt [{name}]: name one of {', '.join(prompt_names())}, or a file with {{{{document}}}} "
            "in it"
        )
    return checked_text(path.name, read_text(path))


def prompt_names() -> list[str]:
    """Return the names of the built-in prompts."""
    return sorted(entry.name.removesuffix(".txt") for entry in _PROMPTS.iterdir() if entry.name.endswith(".txt"))


def checked_text(name: str, text: str) -> Prompt:
    """Check a prompt's placeholders and return it: the document is required, the number of phrases is optional."""
    placeholders = PLACEHOLDERS if "{{most}}" in text else PLACEHOLDERS[:1]
    return checked_prompt(name, text, placeholders)


def _key(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

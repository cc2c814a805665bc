"""Prompts of the query side: one for each kind of task, in two forms, for assistants and for base models.

SIRA asks for vocabulary that narrows the search and forbids guessing the answer itself: a guessed name would lead to
one candidate (section 3.2). Files in the gateway's folder (`rewriter_prompts`) are added to the built-in prompts, or
replace them.
"""

from collections.abc import Collection
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from es_ttc.common.validation import did_you_mean
from es_ttc.enrichment.proposals.parsing import phrases_schema
from es_ttc.errors import InvalidRequest
from es_ttc.llm import Prompt
from es_ttc.llm.prompts import checked_prompt, read_prompt

PromptApi = Literal["chat", "completions"]

QUERY_PLACEHOLDERS = frozenset({"query", "most"})
EXPANSION_SCHEMA = phrases_schema(50)


class Prompts:
    """The built-in prompts, and those of a folder's files ``NAME.txt``."""

    def __init__(self, folder: Path | None = None) -> None:
        found = sorted(folder.glob("*.txt")) if folder is not None else []
        self._own = {path.stem: read_prompt(path, QUERY_PLACEHOLDERS) for path in found}

    def names(self, api: PromptApi) -> list[str]:
        """Return the names that a request may use."""
        return sorted({*self._own, *_built_in(api)})

    def named(self, name: str, api: PromptApi) -> Prompt:
        """Return a prompt."""
        found = self._own.get(name) or _built_in(api).get(name)
        if found is None:
            raise InvalidRequest(f"unknown prompt [{name}]{did_you_mean(name, self.names(api))}")
        return found


@lru_cache
def _built_in(api: PromptApi) -> dict[str, Prompt]:
    ending = f".{api}.txt"
    texts: Collection[tuple[str, str]] = [
        (file.name.removesuffix(ending), file.read_text(encoding="utf-8"))
        for file in files("es_ttc.rewriters").joinpath("sketches").iterdir()
        if file.name.endswith(ending)
    ]
    return {name: checked_prompt(f"{name}{ending}", text, QUERY_PLACEHOLDERS) for name, text in texts}

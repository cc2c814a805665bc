"""Parse a model's answer into proposals: JSON, also incomplete, else lines and commas; nothing raises."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from es_ttc.llm.base import JsonSchema
from es_ttc.llm.prompts import first_json

MAX_PROPOSALS = 100  # proposals in an answer: a degenerate answer repeats itself until its tokens are spent
_MAX_LENGTH = 200  # characters of a proposal
_DEEPEST = 4

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"\s*:')
_SEPARATORS = re.compile(r"[\n\r;,、，；]+")  # noqa: RUF001 - separators of other scripts
_INTRODUCTION = re.compile(r"^[^:\n]{0,60}:\s*(?:\n|(?=\S))")
_LETTER = re.compile(r"[^\W_]")


def phrases_schema(most: int, longest: int = 60) -> JsonSchema:
    """Return the schema of an answer, for endpoints that enforce schemas."""
    phrases = {"type": "array", "items": {"type": "string", "maxLength": longest}, "maxItems": most}
    return JsonSchema(
        "phrases",
        {
            "type": "object",
            "properties": {"phrases": phrases},
            "required": ["phrases"],
            "additionalProperties": False,
        },
    )


def proposals(text: str) -> list[str]:
    """Return the phrases in an answer, in order, each once; none if there are none.

    The first of these that occurs is parsed: a JSON list, a JSON object with lists, complete or not; else lines, split
    at commas and semicolons.
    """
    answer = without_thoughts(text)
    found = first_json(answer)
    if found is not None:
        words: Iterator[str] = _strings(found, 0)
    elif answer.lstrip("`jsonJSON \n").startswith(("{", "[")):
        words = _quoted(answer)
    else:
        words = iter(_SEPARATORS.split(_INTRODUCTION.sub("", answer)))
    return distinct(words)[:MAX_PROPOSALS]


def without_thoughts(answer: str) -> str:
    """Return an answer without what a model has thought aloud before it."""
    return _THOUGHTS.sub("", answer).strip()


def distinct(words: Iterable[str]) -> list[str]:
    """Return the words that can be proposals, stripped, each once: with a letter or digit, and not too long."""
    stripped = (word.strip() for word in words)
    return list(dict.fromkeys(word for word in stripped if len(word) <= _MAX_LENGTH and _LETTER.search(word)))


def _strings(value: Any, depth: int) -> Iterator[str]:
    """Yield every text in a JSON value, without keys."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for inner in value:
            yield from _strings(inner, depth + 1)


def _quoted(broken: str) -> Iterator[str]:
    """Yield the complete strings of incomplete or invalid JSON; a truncated last one is left out."""
    for quoted in _STRING.findall(_KEY.sub("", broken)):
        try:
            yield json.loads(quoted, strict=False)
        except ValueError:
            yield quoted[1:-1]

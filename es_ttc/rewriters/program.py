"""A retrieval program from a model's answer (SIRA, section 1.1): weighted phrases, alternatives, exclusions.

An answer may hold no more than phrases, as JSON, lines or commas. Everything further is optional and bounded, and what
cannot be read is left out: no answer raises an error.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from es_ttc.enrichment.proposals.parsing import MAX_PROPOSALS, distinct, proposals, without_thoughts
from es_ttc.llm.base import JsonSchema
from es_ttc.llm.prompts import first_json

LEAST_WEIGHT, MAX_WEIGHT = 0.1, 3.0  # bounds of a phrase's weight; what lies beyond is set to the bound
MAX_ALTERNATIVES = 5  # alternatives of one phrase
MAX_EXCLUDED = 5  # exclusions of one query
_WEIGHTED = re.compile(r"^(.*\S)\s*\^\s*(\d+(?:\.\d+)?)$")
_PHRASE_KEYS = ("phrase", "term", "text")


@dataclass(frozen=True, slots=True)
class Proposed:
    """One proposal."""

    alternatives: tuple[str, ...]  # wordings, one or more; a document's best one counts
    weight: float = 1.0  # its weight among the proposals, 0.1 to 3


@dataclass(frozen=True, slots=True)
class RetrievalProgram:
    """A model's answer."""

    phrases: tuple[Proposed, ...]  # its proposals, in order
    excluded: tuple[str, ...] = ()  # phrases of documents that are not wanted


PROGRAM_SCHEMA = JsonSchema(
    "program",
    {
        "type": "object",
        "properties": {
            "phrases": {
                "type": "array",
                "maxItems": 50,
                "items": {
                    "type": "object",
                    "properties": {
                        "any": {
                            "type": "array",
                            "items": {"type": "string", "maxLength": 60},
                            "minItems": 1,
                            "maxItems": MAX_ALTERNATIVES,
                        },
                        "weight": {"type": "number"},
                    },
                    "required": ["any", "weight"],
                    "additionalProperties": False,
                },
            },
            "exclude": {"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": MAX_EXCLUDED},
        },
        "required": ["phrases", "exclude"],
        "additionalProperties": False,
    },
)


def retrieval_program(answer: str) -> RetrievalProgram:
    """Return the program in an answer; without phrases if there are none."""
    text = without_thoughts(answer)
    found = first_json(text)
    if isinstance(found, Mapping) and isinstance(found.get("phrases"), list):
        excluded = found.get("exclude")
        return RetrievalProgram(
            tuple(_items(found["phrases"]))[:MAX_PROPOSALS],
            tuple(_texts(excluded))[:MAX_EXCLUDED],
        )
    if isinstance(found, list):
        return RetrievalProgram(tuple(_items(found))[:MAX_PROPOSALS])
    wanted = text.partition('"exclude"')[0] if found is None else text
    return RetrievalProgram(tuple(_plain(text) for text in proposals(wanted)))


def _items(items: list[Any]) -> Iterator[Proposed]:
    for item in items:
        if isinstance(item, Mapping):
            named = [item[key] for key in _PHRASE_KEYS if key in item]
            alternatives = _texts([*named, *_texts(item.get("any"))])[:MAX_ALTERNATIVES]
            if alternatives:
                yield Proposed(tuple(alternatives), _bounded(item.get("weight")))
        else:
            yield from map(_plain, _texts([item]))


def _plain(text: str) -> Proposed:
    """Read a phrase, with a weight where one follows: `heart attack^2`."""
    weighted = _WEIGHTED.match(text)
    return Proposed((weighted[1],), _bounded(float(weighted[2]))) if weighted else Proposed((text,))


def _bounded(weight: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        return 1.0
    return float(min(max(weight, LEAST_WEIGHT), MAX_WEIGHT))


def _texts(items: Any) -> list[str]:
    """Return the proposals among the items of a list; none if it is no list."""
    return distinct(item for item in items if isinstance(item, str)) if isinstance(items, list) else []

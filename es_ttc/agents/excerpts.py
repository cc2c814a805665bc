"""Excerpts of a document's texts, in whole words and within a budget."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from es_ttc.common.whole_words import whole_words
from es_ttc.index.ingest.compose import compose

CHARACTERS_PER_TOKEN = 4
"""Of English text, on average, in the vocabularies of language models."""


class Excerpt(BaseModel):
    """A part of a text field, which begins and ends at words."""

    field: str
    start: int = Field(description="Its first character in the field.")
    end: int = Field(description="The character after its last one.")
    length: int = Field(description="Characters of the whole field.")
    text: str


def text_of(source: Mapping[str, Any], field: str) -> str:
    """Return the text of a field, as it was encoded."""
    return compose(source, [field])[0]


def excerpt(field: str, text: str, start: int, end: int) -> Excerpt:
    """Return a part of a field's text, widened to whole words, without spaces around it."""
    start, end = whole_words(text, min(max(0, start), len(text)), min(end, len(text)))
    start += len(text[start:end]) - len(text[start:end].lstrip())
    end = end if end == len(text) else start + len(text[start:end].rstrip())
    return Excerpt(field=field, start=start, end=end, length=len(text), text=text[start:end])


def around(field: str, text: str, start: int, end: int, characters: int) -> Excerpt:
    """Return a passage of a field's text with as much on both sides as makes it a number of characters long."""
    start = max(0, min(start - (characters - (end - start)) // 2, len(text) - characters))
    return excerpt(field, text, start, start + characters)


def best_passages(hit: Mapping[str, Any], fields: Sequence[str], count: int, characters: int) -> list[Excerpt]:
    """Return the passages of a hit, best first, without overlaps; the beginning of its text if the hit has none.

    Args:
        hit: A hit with the details of its method and, if there are token vectors, passages.
        fields: The text fields to quote from.
        count: The greatest number of passages.
        characters: Characters of all passages together.
    """
    source, detail = hit.get("_source") or {}, hit.get("_ttc") or {}
    given: list[Mapping[str, Any]] = [detail] if "start" in detail else []  # the method's own evidence comes first
    shown: list[Excerpt] = []
    for one in [*given, *detail.get("passages", ())]:
        if one["field"] not in fields:
            continue
        text = text_of(source, one["field"])
        passage = around(one["field"], text, one["start"], one["end"], max(1, characters // count))
        if passage.text and not any(_overlap(passage, other) for other in shown):
            shown.append(passage)
    if shown:
        return shown[:count]
    longest = max(fields, key=lambda field: len(text_of(source, field)), default=None)
    text = "" if longest is None else text_of(source, longest)
    return [excerpt(longest, text, 0, characters)] if longest and text else []


def _overlap(one: Excerpt, other: Excerpt) -> bool:
    return one.field == other.field and one.start < other.end and other.start < one.end

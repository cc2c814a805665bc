"""`highlight` with ``"type": "ttc"``: the parts of a body that the gateway answers, and the fragments of a hit.

The other fields of `highlight` stay the engine's.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.common.validation import shown, validated
from es_ttc.common.whole_words import whole_words
from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.spectral.passages import BestPassage
from es_ttc.serving.request.section import KEY, MAX_PASSAGES

_INHERITED = ("number_of_fragments", "order", "pre_tags", "post_tags")
"""Options that a field takes from the whole `highlight`."""
_AFTER_A_WORD = " \t\r\n.,;:!?)]}"
"""Characters that a fragment does not begin with: they belong to the words before it."""


class _Options(BaseModel):
    """The options of one field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["ttc"]
    number_of_fragments: int = Field(5, ge=1, le=MAX_PASSAGES)
    order: Literal["none", "score"] = "none"
    pre_tags: tuple[str, ...] = Field(("<em>",), min_length=1)
    post_tags: tuple[str, ...] = Field(("</em>",), min_length=1)


@dataclass(frozen=True, slots=True)
class Highlight:
    """One field that is highlighted."""

    field: str
    count: int
    by_score: bool
    tags: tuple[str, str]
    escaped: bool

    def fragments(self, values: Sequence[str], passages: Sequence[BestPassage]) -> list[str]:
        """Return the fragments of a field with their matches marked; none crosses the values of a list.

        Passages, best first, have offsets in all values of the field, joined by one space.
        """
        chosen = list(passages[: self.count])
        if not self.by_score:
            chosen.sort(key=lambda passage: passage.start)
        return [self._marked(values, passage) for passage in chosen]

    def _marked(self, values: Sequence[str], passage: BestPassage) -> str:
        text, position = _value_at(values, passage.match[0])
        start, end = whole_words(text, max(0, passage.start - position), min(len(text), passage.end - position))
        first, last = whole_words(text, passage.match[0] - position, min(len(text), passage.match[1] - position))
        while start < first and text[start] in _AFTER_A_WORD:
            start += 1
        before, match, after = (self._shown(part) for part in (text[start:first], text[first:last], text[last:end]))
        return f"{before}{self.tags[0]}{match}{self.tags[1]}{after}"

    def _shown(self, text: str) -> str:
        return html.escape(text) if self.escaped else text


def _value_at(values: Sequence[str], offset: int) -> tuple[str, int]:
    """Return the value that contains an offset in the joined values, and the offset at which it begins."""
    position = 0
    for value in values[:-1]:
        if offset < position + len(value):
            return value, position
        position += len(value) + 1
    return values[-1], position


def without_highlights(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[Highlight, ...]]:
    """Return a body without the fields of its `highlight` with ``"type": "ttc"``, and these fields."""
    highlight = body.get("highlight")
    fields = highlight.get("fields") if isinstance(highlight, Mapping) else None
    if not isinstance(highlight, Mapping) or not isinstance(fields, Mapping | list):
        return body, ()  # not valid, or the engine's own
    entries = [fields] if isinstance(fields, Mapping) else [field for field in fields if isinstance(field, Mapping)]
    ours = [
        _parsed(name, options, highlight)
        for entry in entries
        for name, options in entry.items()
        if _type_of(options, highlight) == KEY
    ]
    if not ours:
        return body, ()
    rest = [
        {name: options for name, options in entry.items() if _type_of(options, highlight) != KEY} for entry in entries
    ]
    left = [entry for entry in rest if entry]
    body = {key: value for key, value in body.items() if key != "highlight"}
    if left:
        body["highlight"] = {**highlight, "fields": left[0] if isinstance(fields, Mapping) else left}
    return body, tuple(ours)


def _type_of(options: Any, given: Mapping[str, Any]) -> Any:
    return options.get("type", given.get("type")) if isinstance(options, Mapping) else None


def _parsed(name: str, options: Mapping[str, Any], given: Mapping[str, Any]) -> Highlight:
    if "*" in name:
        raise InvalidRequest(f'[highlight.fields] with type [{KEY}] takes names of text fields, got "{name}"')
    inherited = {key: given[key] for key in _INHERITED if key in given}
    own = validated(_Options, {**inherited, **options, "type": KEY}, f"highlight.fields.{name}")
    encoder = given.get("encoder", "default")
    if encoder not in ("default", "html"):
        raise InvalidRequest(f"[highlight.encoder] must be [default] or [html], got {shown(encoder)}")
    tags = own.pre_tags[0], own.post_tags[0]
    return Highlight(name, own.number_of_fragments, own.order == "score", tags, encoder == "html")

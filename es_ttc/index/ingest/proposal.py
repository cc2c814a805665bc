"""Which fields of some documents are text, which is the id, which have HTML: a proposal from the first documents."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from es_ttc.common.languages import LATIN, language_of
from es_ttc.common.markup import blanked, has_markup

MAX_TEXT_FIELDS = 5
_MAX_DEPTH = 3
_MIN_WORDS = 2.5  # a field of more words on average is text, no label; of scripts without spaces, characters
_CHARACTERS_A_WORD = 3
_MAX_TITLE_WORDS = 20
_WORD = re.compile(r"[^\W\d_]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NO_TEXT = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*://\S+|\S+@\S+\.\S+|[0-9a-fA-F-]{16,}|[A-Za-z0-9+/=_-]{32,})\s*")
_TITLES = ("title", "name", "subject", "headline", "heading", "label", "titel", "titre", "nombre")
_MIN_SHARE = 0.2  # share of the texts from which on a language is named
_IDS = ("id", "_id", "uuid", "key", "sku", "isbn", "asin", "number", "nr", "no")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the first documents suggest: fields to encode, the title first, then by length; a field of ids, if any."""

    text_fields: tuple[str, ...]
    id_field: str | None

    @property
    def options(self) -> str:
        """The options of a command that take the proposal."""
        named = f"--text-fields {','.join(self.text_fields)}"
        return named if self.id_field is None else f"{named} --id-field {self.id_field}"


def propose_fields(documents: Sequence[Mapping[str, Any]]) -> Proposal:
    """Return a proposal from some documents; the more they are, the better it tells labels from texts."""
    values = _values(documents)
    words = {name: _mean_words(found) for name, found in values.items()}
    texts = sorted((name for name, count in words.items() if count >= _MIN_WORDS), key=lambda name: -words[name])
    title = _title(values, words)
    chosen = ([title] if title else []) + [name for name in texts if name != title]
    fields = tuple(chosen[:MAX_TEXT_FIELDS])
    return Proposal(fields, None if "_id" in values else _id(values, len(documents), fields))


def html_fields(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the text fields of which most values have HTML tags or entities."""
    values = {name: some for name, some in _values(documents).items() if name in text_fields}
    return tuple(name for name, some in values.items() if mean(has_markup(str(value)) for value in some) > 1 / 2)


def languages(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the languages of the text fields, the most frequent first, or scripts where that is all that is known."""
    values = _values(documents)
    return _languages([value for name in text_fields for value in values.get(name, ())])


def describe(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> str:
    """Return each text field with its language, its mean length and whether it has HTML."""
    values, html = _values(documents), html_fields(documents, text_fields)
    descriptions = []
    for name in text_fields:
        words = round(_mean_words(values[name]))
        known = [*_languages(values[name]), f"{words} word{'s' * (words != 1)}"]
        descriptions.append(f"{name} ({', '.join([*known, 'HTML'] if name in html else known)})")
    return ", ".join(descriptions)


def _languages(values: Sequence[Any]) -> tuple[str, ...]:
    found = Counter(language_of(blanked(value)) for value in values if isinstance(value, str))
    del found[""]
    if "Japanese" in found:  # a title without kana among them
        found["Japanese"] += found.pop("Chinese", 0)
    least = _MIN_SHARE * found.total()
    named = tuple(name for name, count in found.most_common() if count >= least and name != LATIN)
    return named or tuple(found)[:1]


def _values(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each field, by dotted name."""
    values: dict[str, list[Any]] = defaultdict(list)
    for document in documents:
        for name, value in _leaves(document):
            values[name].append(value)
    return values


def _leaves(document: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of a document with their dotted names; a list's values one by one."""
    for key, value in document.items():
        name = f"{path}{key}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping) and depth < _MAX_DEPTH:
                yield from _leaves(item, f"{name}.", depth + 1)
            elif item is not None and not isinstance(item, Mapping | list):
                yield name, item


def _mean_words(values: Sequence[Any]) -> float:
    """Return the mean number of words of a field's values; 0 if most are no text."""
    texts = [blanked(value) for value in values if isinstance(value, str) and not _NO_TEXT.fullmatch(value)]
    if len(texts) <= len(values) / 2:
        return 0.0
    counts = [max(len(_WORD.findall(text)), len(_UNSPACED.findall(text)) / _CHARACTERS_A_WORD) for text in texts]
    return mean(counts)


def _title(values: Mapping[str, Sequence[Any]], words: Mapping[str, float]) -> str | None:
    """Return the field whose name is that of a title, if its values are short texts."""

    def rank(name: str) -> tuple[int, int]:
        return name.count("."), _TITLES.index(name.rpartition(".")[2].lower())

    named = [name for name in values if name.rpartition(".")[2].lower() in _TITLES]
    return min((name for name in named if 0 < words[name] <= _MAX_TITLE_WORDS), key=rank, default=None)


def _id(values: Mapping[str, Sequence[Any]], documents: int, texts: Sequence[str]) -> str | None:
    """Return a top-level field with another value in every document whose name is, or ends with, that of an id."""

    def is_id(name: str, found: Sequence[Any]) -> bool:
        last = re.split(r"[_\s-]|(?<=[a-z])(?=[A-Z])", name.rstrip(". "))[-1].lower()
        simple = all(isinstance(value, str | int) and not isinstance(value, bool) and value != "" for value in found)
        named = last in _IDS or last.endswith(("nummer", "number"))
        return named and name not in texts and simple and len(found) == len(set(found)) == documents

    return min((name for name, found in values.items() if is_id(name, found)), key=len, default=None)

"""Which fields of some documents are text, which is the id, which have HTML: a proposal from the first documents."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

import orjson

from es_ttc.common.exact_numbers import ExactNumber
from es_ttc.common.languages import LATIN, SOUTH_EAST_ASIAN, language_of
from es_ttc.common.markup import blanked, has_markup

MAX_TEXT_FIELDS = 5
_MAX_DEPTH = 3
_MIN_WORDS = 2.5  # a field of more words on average is text, no label; of scripts without spaces, characters
_LONG_WORDS = 10  # documents may share a long text, such as that of the sizes of one product
_MIN_DIFFERENT, _MIN_LONG_DIFFERENT, _MIN_UNIQUE = 0.5, 0.2, 0.8  # shares of different values among a field's values
_CHARACTERS_A_WORD = 3
_MAX_TITLE_WORDS = 20
_WORD = re.compile(r"[^\W\d_]{2,}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,]*")
_UNSPACED = re.compile(f"[{SOUTH_EAST_ASIAN}\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NO_TEXT = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*://\S+|\S+@\S+\.\S+|[0-9a-fA-F-]{16,}|[A-Za-z0-9+/=_-]{32,})\s*")
_TITLES = (
    *("title", "name", "subject", "headline", "heading", "summary", "label", "titel", "titre", "nombre"),
    *("bezeichnung", "betreff", "überschrift", "título", "titolo", "nome", "nom", "naam"),
)
_LABELS = frozenset(("name", "key", "label", "attribute", "property", "code"))
"""Keys of an object in a list, such as an attribute or a category, whose short values are labels."""
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
    values, labels = _values(documents), _fields_of_labels(documents)
    words = {name: _mean_words(found) for name, found in values.items()}
    texts = sorted((name for name in values if _is_text(name, values, words, labels)), key=lambda name: -words[name])
    title = _title({name: found for name, found in values.items() if name not in labels}, words)
    chosen = ([title] if title else []) + [name for name in texts if name != title]
    fields = tuple(chosen[:MAX_TEXT_FIELDS])
    return Proposal(fields, None if "_id" in values else _id(values, len(documents), fields))


def number_fields(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the text fields whose values are numbers, also where they are written as text."""
    values = _values(documents)
    return tuple(name for name in text_fields if name in values and all(map(_is_number, values[name])))


def values_of_labels(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> dict[str, str]:
    """Return the text fields that are names of attributes in lists, with the fields of the attributes' values."""
    labels = _fields_of_labels(documents)
    named = [name for name in text_fields if name in labels and name.rpartition(".")[2].lower() in _LABELS]
    values = {name: f"{name.rpartition('.')[0]}.value" for name in named}
    return {name: value for name, value in values.items() if value in labels and value not in text_fields}


def html_fields(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the text fields of which most values have HTML tags or entities."""
    values = {name: some for name, some in _values(documents).items() if name in text_fields}
    return tuple(name for name, some in values.items() if mean(has_markup(str(value)) for value in some) > 1 / 2)


def languages(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> tuple[str, ...]:
    """Return the languages of the text fields, the most frequent first, or scripts where that is all that is known."""
    values = _values(documents)
    return _languages([value for name in text_fields for value in values.get(name, ())])


class FieldDescription(NamedTuple):
    """What the first documents have in a text field."""

    name: str
    languages: tuple[str, ...]
    words: int
    html: bool

    def __str__(self) -> str:
        parts = [*self.languages, f"{self.words} word{'s' * (self.words != 1)}", *(["HTML"] if self.html else [])]
        return f"{self.name} ({', '.join(parts)})"


def describe(documents: Sequence[Mapping[str, Any]], text_fields: Sequence[str]) -> list[FieldDescription]:
    """Return each text field with its languages, its mean length in words and whether it has HTML."""
    values, html = _values(documents), html_fields(documents, text_fields)
    return [
        FieldDescription(
            name,
            tuple(language for language in _languages(values[name]) if language != LATIN),
            round(_mean_words(values[name] or [""])),
            name in html,
        )
        for name in text_fields
    ]


def _languages(values: Sequence[Any]) -> tuple[str, ...]:
    texts = [blanked(value) for value in values if isinstance(value, str)]
    named = [language_of(text) for text in texts]
    found = Counter(named)
    del found[""]
    short = [text for text, language in zip(texts, named, strict=True) if language == LATIN]
    if short and (language := language_of(" ".join(short))) != LATIN:  # which none of them tells alone
        found[language] += found.pop(LATIN)
    if "Japanese" in found:  # a title without kana among them
        found["Japanese"] += found.pop("Chinese", 0)
    least = _MIN_SHARE * found.total()
    frequent = tuple(name for name, count in found.most_common() if count >= least and name != LATIN)
    return frequent or tuple(found)[:1]


def _values(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each field, by dotted name."""
    values: dict[str, list[Any]] = defaultdict(list)
    for document in documents:
        for name, value in _leaves(document):
            values[name].append(value)
    return values


def _fields_of_labels(documents: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the fields of objects in lists that have a key of :data:`_LABELS`."""
    lists = [(name, items) for document in documents for name, items in _lists_of_objects(document)]
    labelled = {name for name, items in lists if any(not _LABELS.isdisjoint(map(str.lower, item)) for item in items)}
    return frozenset(f"{name}.{field}" for name, items in lists if name in labelled for item in items for field in item)


def _lists_of_objects(document: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, list[Any]]]:
    for key, value in document.items():
        items = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, Mapping)]
        if isinstance(value, list) and items:
            yield f"{path}{key}", items
        for item in items if depth < _MAX_DEPTH else ():
            yield from _lists_of_objects(item, f"{path}{key}.", depth + 1)


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
    texts = [text for text in texts if not _is_json(text)]
    if len(texts) <= len(values) / 2:
        return 0.0
    return mean(max(_words(text), len(_UNSPACED.findall(text)) / _CHARACTERS_A_WORD) for text in texts)


def _words(text: str) -> int:
    """Return the number of words; parts of a path, or of a name with hyphens, are none."""
    return min(len(_WORD.findall(text)), len(text.split()))


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, int | float | ExactNumber) and not isinstance(value, bool)


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith(("{", "[")) and isinstance(orjson.loads(text), dict | list)
    except ValueError:
        return False


def _is_text(
    name: str, values: Mapping[str, Sequence[Any]], words: Mapping[str, float], labels: Collection[str]
) -> bool:
    """Return whether a field's values are texts that differ, and no labels."""
    if words[name] >= _LONG_WORDS:
        return _different(values[name]) >= _MIN_LONG_DIFFERENT
    return words[name] >= _MIN_WORDS and name not in labels and _different(values[name]) >= _MIN_DIFFERENT


def _different(values: Sequence[Any]) -> float:
    return len(set(values)) / len(values)


def _title(values: Mapping[str, Sequence[Any]], words: Mapping[str, float]) -> str | None:
    """Return the field whose name is that of a title, or ends with it, if its values are short texts that differ."""

    def word_of(name: str) -> str:
        own = name.rpartition(".")[2].lower()
        return own if own in _TITLES else _last_word(name.rpartition(".")[2])

    def rank(name: str) -> tuple[int, bool, int]:
        return name.count("."), word_of(name) != name.rpartition(".")[2].lower(), _TITLES.index(word_of(name))

    def is_title(name: str) -> bool:
        if word_of(name) not in _TITLES or not 0 < words[name] <= _MAX_TITLE_WORDS:
            return False
        if name.lower() in _TITLES:
            return _different(values[name]) >= _MIN_LONG_DIFFERENT
        return words[name] >= _MIN_WORDS and _different(values[name]) >= _MIN_UNIQUE  # not `author.name`, `brand_name`

    return min(filter(is_title, values), key=rank, default=None)


def _last_word(name: str) -> str:
    return re.split(r"[_\s-]|(?<=[a-z])(?=[A-Z])", name.rstrip(". "))[-1].lower()


def _id(values: Mapping[str, Sequence[Any]], documents: int, texts: Sequence[str]) -> str | None:
    """Return a top-level field with another value in every document whose name is, or ends with, that of an id."""

    def is_id(name: str, found: Sequence[Any]) -> bool:
        last = _last_word(name)
        simple = all(isinstance(value, str | int) and not isinstance(value, bool) and value != "" for value in found)
        named = last in _IDS or last.endswith(("nummer", "number"))
        return named and name not in texts and simple and len(found) == len(set(found)) == documents

    return min((name for name, found in values.items() if is_id(name, found)), key=len, default=None)

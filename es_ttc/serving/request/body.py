"""A search body: its values as the engines read them, the texts of its query, and the clauses that the gateway answers.

The clauses are `ttc` queries, and kNN clauses with a text or a section.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from es_ttc.errors import InvalidRequest
from es_ttc.serving.request.query import as_clauses
from es_ttc.serving.request.section import KEY

TEXT = "query_text"
Place = tuple[str | int, ...]
"""Keys and positions from the body to an object."""
_MAX_INTEGER = 2**31 - 1
_MAX_DIGITS = 100  # far more than a number needs; longer text takes quadratic time
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_URL_INTEGER = re.compile(r"[+-]?\d+")  # of any script
_BOOLEANS = {"true": True, "false": False, "": False}


def body_number(value: Any) -> float | None:
    """Return the number that an engine reads from a value in a body; None if it reads none, or an infinite one."""
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if len(text) <= _MAX_DIGITS and _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= sys.float_info.max else None


def body_integer(value: Any) -> int | None:
    """Return the integer that an engine reads from a value in a body, without its fraction; None if it reads none."""
    number = body_number(value)
    return None if number is None or not abs(number) <= _MAX_INTEGER else int(number)


def url_integer(text: str) -> int | None:
    """Return the integer that an engine reads from a URL parameter; None if it reads none."""
    number = int(text) if len(text) <= _MAX_DIGITS and _URL_INTEGER.fullmatch(text) else None
    return None if number is None or abs(number) > _MAX_INTEGER else number


def boolean(value: Any) -> bool | None:
    """Return the boolean that an engine reads from a value, an empty one as false; None if it reads none."""
    return value if isinstance(value, bool) else _BOOLEANS.get(value) if isinstance(value, str) else None


# Leaf queries with a text per field, and the key of the text.
_TEXT_BY_FIELD = {
    "match": "query",
    "match_phrase": "query",
    "match_phrase_prefix": "query",
    "match_bool_prefix": "query",
    "neural": "query_text",
    "neural_sparse": "query_text",
    "text_expansion": "model_text",
}
_TEXT_IN_QUERY = frozenset({"multi_match", "combined_fields", "semantic", "sparse_vector"})
# Compound queries, and the keys of the parts that affect the score; filters and must_not do not.
_PARTS = {
    "bool": ("must", "should"),
    "dis_max": ("queries",),
    "hybrid": ("queries",),
    "boosting": ("positive",),
    "constant_score": ("filter",),
    "function_score": ("query",),
    "script_score": ("query",),
    "nested": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "pinned": ("organic",),
}
_FIELD = r"(?:[A-Za-z_][\w.]*:)"
_TERM = rf'{_FIELD}?(?:"[^"]*"|\([^()]*\)|[^\s()"]+)'
_NEGATED = re.compile(rf"(?<![^\s(])[-!](?=\S){_TERM}")
_MARKS = re.compile(r'["()]|(?<=\S)\^[\d.]+|(?<=\S)~\d*(?!\S)|(?<!\S)\+|(?<!\S)\|+(?!\S)')
_ONLY_IN_QUERY_STRING = (
    re.compile(rf"\bNOT\s+{_TERM}"),
    re.compile(rf"{_FIELD}(?:[\[{{][^\]}}]*[\]}}]|[<>]=?\S+)"),  # a range
    re.compile(r"\b(?:AND|OR)\b|&&"),
    re.compile(rf"(?<![\w.]){_FIELD}(?=[^\s/])"),
)


def texts_of(query: Any, not_text: Set[str] = frozenset()) -> Iterator[str]:
    """Yield every text that a native query ranks by, in order; not one looked for only in fields of ``not_text``."""
    return (text for fields, text in fielded_texts(query) if not fields or not not_text >= {*fields})


def fielded_texts(query: Any) -> Iterator[tuple[list[str], str]]:
    """Yield every text of a native query with the fields in which it is looked for; none if they are not named."""
    if not isinstance(query, Mapping):
        return
    for kind, inner in query.items():
        if not isinstance(inner, Mapping):
            continue
        if kind in ("query_string", "simple_query_string"):
            yield from _in_fields(fields_of(inner) or [], query_string_words(inner.get("query"), kind))
        elif kind in _TEXT_IN_QUERY:
            yield from _in_fields(fields_of(inner) or [], inner.get("query"))
        elif kind == "more_like_this":
            yield from _in_fields(fields_of(inner) or [], inner.get("like"))
        elif kind in _TEXT_BY_FIELD:
            for name, value in inner.items():
                text = value.get(_TEXT_BY_FIELD[kind]) if isinstance(value, Mapping) else value
                yield from _in_fields([name] if kind.startswith("match") else [], text)
        else:
            for part in _PARTS.get(kind, ()):
                clauses = inner.get(part)
                for clause in clauses if isinstance(clauses, list) else [clauses]:
                    yield from fielded_texts(clause)


def texts_of_retriever(retriever: Any, not_text: Set[str] = frozenset()) -> Iterator[str]:
    """Yield every text that a retriever ranks by, in order; nothing for one of another form."""
    for inner in retriever.values() if isinstance(retriever, Mapping) else ():
        if not isinstance(inner, Mapping):
            continue
        query, parts = inner.get("query"), inner.get("retrievers")
        yield from _text(query) if isinstance(query, str) else texts_of(query, not_text)
        yield from _text(inner.get("inference_text"))
        for part in [inner.get("retriever"), *(parts if isinstance(parts, list) else ())]:
            yield from texts_of_retriever(part.get("retriever", part) if isinstance(part, Mapping) else None, not_text)


def with_text(query: Any, text: str) -> dict[str, Any] | None:
    """Return the clauses of a query that rank by texts, with another text; None if it has none.

    Other clauses, names and inner hits are left out. A number or a date in `match` or `multi_match` matches no text.
    """
    [(kind, inner)] = query.items() if isinstance(query, Mapping) and len(query) == 1 else [("", None)]
    if not isinstance(inner, Mapping):
        return None
    rest = _without_names(inner)
    lenient = {"lenient": True} if kind in ("match", "multi_match") else {}
    if kind in ("query_string", "simple_query_string"):
        fields = inner.get("fields") or as_clauses(inner.get("default_field"))
        plain = {"query": text, "flags": "NONE", "lenient": True}
        return {"simple_query_string": plain | ({"fields": fields} if fields else {})}
    if kind in _TEXT_IN_QUERY:
        return {kind: {**rest, **lenient, "query": text}}
    if kind in _TEXT_BY_FIELD:
        options = {name: value if isinstance(value, Mapping) else {} for name, value in rest.items()}
        own = {**lenient, _TEXT_BY_FIELD[kind]: text}
        return {kind: {name: {**_without_names(given), **own} for name, given in options.items()}}
    parts = [with_text(part, text) for key in _PARTS.get(kind, ()) for part in as_clauses(inner.get(key))]
    clauses = [*{repr(clause): clause for clause in parts if clause is not None}.values()]
    if not clauses:
        return None
    if kind in ("nested", "has_child", "has_parent"):
        return {kind: {**rest, "query": clauses[0]}}
    boost = {"boost": inner["boost"]} if "boost" in inner else {}
    if kind in ("dis_max", "hybrid"):
        return {"dis_max": {"queries": clauses, "tie_breaker": inner.get("tie_breaker", 0.0), **boost}}
    return {"bool": {"should": clauses, **boost}} if len(clauses) > 1 or boost else clauses[0]


def _without_names(clause: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in clause.items() if key not in ("_name", "inner_hits")}


def query_string_words(text: Any, kind: str = "query_string") -> Any:
    """Return the words of a query string without its syntax: no operators and field names, no negated words."""
    if not isinstance(text, str):
        return text
    patterns = (_NEGATED, *(_ONLY_IN_QUERY_STRING if kind == "query_string" else ()), _MARKS)
    words = text
    for pattern in patterns:
        words = pattern.sub(" ", words)
    return text if words == text else " ".join(words.split())


def fields_of(clause: Mapping[str, Any]) -> list[str] | None:
    """Return the fields of a clause such as `multi_match` by their names, none if all are meant; None for patterns."""
    parts = [clause.get("fields"), clause.get("default_field")]
    given = [one for part in parts if part is not None for one in (part if isinstance(part, list) else [part])]
    names = [one.partition("^")[0] for one in given if isinstance(one, str)]
    if names == ["*"]:
        return []
    return names if len(names) == len(given) and not any("*" in name for name in names) else None


def _in_fields(fields: list[str], value: Any) -> Iterator[tuple[list[str], str]]:
    return ((fields, text) for text in _text(value))


def _text(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value


class FoundClause(NamedTuple):
    """A clause as it stands in a body.

    Attributes:
        hook: ``query`` for a `ttc` query; for a kNN clause ``top``, ``knn`` (in a query) or ``retriever``.
        place: Its place: of the object that contains the section, or of the ``knn`` object.
        value: The object there.
    """

    hook: str
    place: Place
    value: Mapping[str, Any]

    @property
    def is_knn(self) -> bool:
        """Whether it is a kNN clause."""
        return self.hook != "query"


def find_clauses(body: Mapping[str, Any]) -> list[FoundClause]:
    """Return the clauses of a search body that the gateway answers, in their order."""
    top = body.get("knn")
    clauses = []
    if isinstance(top, dict) and _has_text_or_section(top):
        clauses.append(FoundClause("top", ("knn",), top))
    for position, value in enumerate(top if isinstance(top, list) else ()):
        if _has_text_or_section(value):
            clauses.append(FoundClause("top", ("knn", position), value))
    try:
        clauses += _below(body.get("query"), ("query",), "knn")
        clauses += _below(body.get("retriever"), ("retriever",), "retriever")
    except RecursionError:
        raise InvalidRequest("[query] is nested too deeply") from None
    return clauses


def _below(value: Any, place: Place, hook: str) -> Iterator[FoundClause]:
    if isinstance(value, list):
        for position, one in enumerate(value):
            yield from _below(one, (*place, position), hook)
    elif isinstance(value, dict):
        if _is_query(value, place):
            yield FoundClause("query", place, value)
            return
        for key, one in value.items():
            if key == "knn" and _has_text_or_section(one):
                yield FoundClause(hook, (*place, key), one)
            elif key != KEY:
                yield from _below(one, (*place, key), "knn" if key == "query" else hook)


def _is_query(value: Mapping[str, Any], place: Place) -> bool:
    """Return whether an object is a `ttc` query: the whole query, or one inside it that names a method."""
    if KEY not in value or "knn" in place:
        return False
    return place == ("query",) or (isinstance(value[KEY], dict) and "method" in value[KEY])


def _has_text_or_section(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if TEXT in value or KEY in value:
        return True
    fields = list(value.values())
    return len(fields) == 1 and isinstance(fields[0], dict) and (TEXT in fields[0] or KEY in fields[0])


def put_at(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of nested JSON with a new value in one place."""
    if not place:
        return new
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = put_at(value[place[0]], place[1:], new)
    return copy

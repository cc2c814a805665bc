"""The text of a native query, so that a `ttc` section need not repeat it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

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


def texts_of(query: Any) -> Iterator[str]:
    """Yield every text that a native query ranks by, in order; nothing for a query of another kind or form."""
    if not isinstance(query, Mapping):
        return
    for kind, inner in query.items():
        if not isinstance(inner, Mapping):
            continue
        if kind in ("query_string", "simple_query_string"):
            yield from _text(words_of(inner.get("query"), kind))
        elif kind in _TEXT_IN_QUERY:
            yield from _text(inner.get("query"))
        elif kind in _TEXT_BY_FIELD:
            for value in inner.values():
                yield from _text(value.get(_TEXT_BY_FIELD[kind]) if isinstance(value, Mapping) else value)
        else:
            for part in _PARTS.get(kind, ()):
                clauses = inner.get(part)
                for clause in clauses if isinstance(clauses, list) else [clauses]:
                    yield from texts_of(clause)


def words_of(text: Any, kind: str = "query_string") -> Any:
    """Return the words of a query string without its syntax: no operators and field names, no negated words."""
    if not isinstance(text, str):
        return text
    patterns = (_NEGATED, *(_ONLY_IN_QUERY_STRING if kind == "query_string" else ()), _MARKS)
    words = text
    for pattern in patterns:
        words = pattern.sub(" ", words)
    return text if words == text else " ".join(words.split())


def _text(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value

"""A query's words apart from what else it says: functions, boosts, demotions, decays.

Blend ranks by words and vectors. What a query says besides its words multiplies the final score, so that it is not
one signal of four. The engine is asked for the parts in the first pass itself, by named queries with scores:

- each clause of words in its place (`ttc-words-0`, ...): their sum is the first-pass score of the words alone;
- the query with a constant of 1, 10 and 100 in place of its words (`ttc-at-1`, ...): what the query makes of such a
  score. Between these the query's effect is taken as linear, which it is for all that adds or multiplies.

The factor of a document is what the query makes of the window's mean score of words, over that score. So it is the same
for documents of the first pass and for those that join, whose words may score 0.

A clause is of words if it is a full-text clause, or contains a text of the search, also in an exact field such as that
of a part number. Where no clause is, the words are what matches all documents.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.serving.request.query import (
    FUNCTIONS,
    RULES,
    as_clauses,
    has_no_functions,
    normalised_spaces,
    without_inner_hits,
)
from es_ttc.vectors.tokens import Float32

_WORDS = "ttc-words-"
PART = "ttc-part-"
_AT = {f"ttc-at-{constant}": float(constant) for constant in (1, 10, 100)}
_NO_TEXT = frozenset(
    {
        "constant_score", "distance_feature", "exists", "fuzzy", "geo_bounding_box", "geo_distance", "geo_grid",
        "geo_polygon", "geo_shape", "ids", "match_none", "percolate", "prefix", "range", "rank_feature", "regexp",
        "script", "term", "terms", "terms_set", "wildcard",
    }
)  # fmt: skip
_ALL = "match_all"
_GREATEST = 1e30  # of a factor: that of a pinned document is not used


class _Kind(Enum):
    WORDS = "words"
    ALL = "all"  # every document with the same score
    OTHER = "other"
    MIXED = "mixed"


class UndividedQuery(Exception):
    """A query's words cannot be told from what else it says; the message is the reason."""


@dataclass(frozen=True, slots=True)
class QueryParts:
    """What a query says besides its words, as requests to the engine and as factors of scores.

    Attributes:
        query: The query; its clauses of words are named.
        constants: By name, the query with a constant in place of its words.
        names: Names of the clauses of words.
        boosts: `indices_boost` of the search.
    """

    query: Mapping[str, Any] | None
    constants: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()
    boosts: Any = None

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a search's body that asks for the parts of each hit."""
        if self.query is None:
            return dict(body)
        return {**body, "query": self.query, "post_filter": self.named(body.get("post_filter"))}

    def named(self, post_filter: Any = None, further: Sequence[Any] = ()) -> dict[str, Any]:
        """Return a filter that names further clauses and the parts that are no clause of the query."""
        return with_named(post_filter, [*further, *(named(query, name) for name, query in self.constants.items())])

    def words(self, hits: Sequence[Mapping[str, Any]], first_pass: Float32) -> Float32:
        """Return the scores of the words alone, ``(n,)``."""
        if self.query is None:
            return first_pass / self._boosts_of(hits)
        matched = [hit.get("matched_queries") or {} for hit in hits]
        return np.array([sum(one.get(name, 0.0) for name in self.names) for one in matched], np.float32)

    def factors(self, hits: Sequence[Mapping[str, Any]], words: Float32, found: int) -> Float32:
        """Return the factor of each hit, ``(n,)``; the first `found` hits are those of the first pass."""
        boosts = self._boosts_of(hits)
        if self.query is None:
            return boosts
        scores = words[:found][words[:found] > 0]
        mean = float(scores.mean()) if len(scores) else 1.0
        constants = np.array([*_AT.values()])
        made = np.array([[_score_at(hit, name, at) for name, at in _AT.items()] for hit in hits]).reshape(-1, len(_AT))
        return np.clip(_linear(mean, constants, made) / mean, 0, _GREATEST).astype(np.float32) * boosts

    def _boosts_of(self, hits: Sequence[Mapping[str, Any]]) -> Float32:
        if not self.boosts:
            return np.ones(len(hits), np.float32)
        return np.array([boost_of(hit["_index"], self.boosts) for hit in hits], np.float32)


def query_parts(query: Any, texts: Sequence[str], boosts: Any) -> QueryParts | None:
    """Return the parts of a search's query; None if it says nothing besides its words.

    Args:
        query: The query of the body.
        texts: The texts by which the section ranks.
        boosts: `indices_boost` of the body.
    """
    divided = _Division({normalised_spaces(text).casefold() for text in texts})
    names: list[str] = []

    def of_words(clause: Any) -> dict[str, Any]:
        names.append(f"{_WORDS}{len(names)}")
        return named(clause, names[-1])

    try:
        if divided.kind(query) is _Kind.MIXED:
            words, plain = divided.replaced(query, of_words), without_inner_hits(query)
            constants = {name: divided.replaced(plain, _constant(at)) for name, at in _AT.items()}
            return QueryParts(words, constants, names, boosts)
    except RecursionError:
        raise UndividedQuery("[query] is nested too deeply") from None
    return QueryParts(None, boosts=boosts) if boosts else None


def boost_of(index: str, boosts: Any) -> float:
    """Return the factor of an index's scores by the first of `indices_boost` that names it."""
    named = [one for one in (boosts if isinstance(boosts, list) else [boosts]) if isinstance(one, Mapping)]
    return next((float(by) for one in named for name, by in one.items() if fnmatchcase(index, name)), 1.0)


def without_parts(hit: dict[str, Any], *, with_scores: bool) -> None:
    """Remove the gateway's names from a hit's `matched_queries`, in place; without scores they are a list."""
    matched = hit.get("matched_queries")
    if not isinstance(matched, Mapping):
        return
    own = {name: score for name, score in matched.items() if not name.startswith((_WORDS, PART)) and name not in _AT}
    if own:
        hit["matched_queries"] = own if with_scores else [*own]
    else:
        del hit["matched_queries"]


class _Division:
    """Tells the clauses of words of one query from the others."""

    def __init__(self, texts: Set[str]) -> None:
        self._texts = texts
        self._words = _Kind.WORDS

    def kind(self, query: Any) -> _Kind:
        """Return what a query's score comes from; if nothing is of words, what matches all documents stands for it."""
        kind = self._kind(query)
        if kind is _Kind.MIXED and not self._holds_words(query):
            self._words = _Kind.ALL
        return kind

    def replaced(self, query: Any, by: Callable[[Any], Any]) -> Any:
        """Return a query with each clause of words replaced, in their order."""
        kind = self._kind(query)
        if kind is self._words:
            return by(query)
        if kind is not _Kind.MIXED:
            return query
        [(name, clause)] = query.items()
        parts = {
            key: [self.replaced(one, by) for one in as_clauses(clause[key])]
            if key in ("must", "should")
            else self.replaced(clause[key], by)
            for key in _scored_parts(name, clause)
        }
        return {name: {**clause, **parts}}

    def _holds_words(self, query: Any) -> bool:
        kind = self._kind(query)
        if kind is not _Kind.MIXED:
            return kind is _Kind.WORDS
        [(name, clause)] = query.items()
        return any(self._holds_words(one) for key in _scored_parts(name, clause) for one in as_clauses(clause[key]))

    def _kind(self, query: Any) -> _Kind:
        if not isinstance(query, Mapping) or len(query) != 1:
            return _Kind.WORDS
        [(name, clause)] = query.items()
        if name == _ALL:
            return _Kind.ALL
        if name in _NO_TEXT:
            return _Kind.WORDS if self._has_text(clause) else _Kind.OTHER
        if not isinstance(clause, Mapping):
            return _Kind.WORDS
        if name in ("nested", "has_child", "has_parent"):
            return _Kind.OTHER if self._kind(clause.get("query")) in (_Kind.ALL, _Kind.OTHER) else _Kind.WORDS
        if name == "dis_max":
            return self._kind_of_best(as_clauses(clause.get("queries")))
        inner = [self._kind(one) for key in _scored_parts(name, clause) for one in as_clauses(clause[key])]
        if name == "bool":
            return _together(inner)
        if name in _COMPOUND:
            pure = name in _ORGANIC or (name == "function_score" and has_no_functions(clause))
            return _Kind.MIXED if not pure and inner != [_Kind.OTHER] else _together(inner)
        return _Kind.WORDS

    def _kind_of_best(self, queries: Sequence[Any]) -> _Kind:
        kind = _together([self._kind(query) for query in queries])
        if kind is _Kind.MIXED:
            raise UndividedQuery("[dis_max] takes the greater of words and of something else")
        return kind

    def _has_text(self, clause: Any) -> bool:
        """Return whether a clause contains a text of the search."""
        if isinstance(clause, Mapping):
            return any(map(self._has_text, clause.values()))
        if isinstance(clause, list):
            return len(clause) <= _MAX_TERMS and any(map(self._has_text, clause))
        return isinstance(clause, str) and normalised_spaces(clause).casefold() in self._texts


_ORGANIC = RULES | {"pinned"}
_COMPOUND: Mapping[str, str] = {
    "boosting": "positive", **dict.fromkeys(FUNCTIONS, "query"), **dict.fromkeys(_ORGANIC, "organic"),
}  # fmt: skip
"""Clauses around one query, and the key under which it stands."""
_MAX_TERMS = 100  # values of a clause that are compared with the search's texts


def _scored_parts(name: str, clause: Mapping[str, Any]) -> list[str]:
    """Return the keys of a clause whose queries add to its score."""
    keys = ("must", "should") if name == "bool" else (_COMPOUND.get(name, ""),)
    return [key for key in keys if clause.get(key)]


def _together(kinds: Sequence[_Kind]) -> _Kind:
    """Return the kind of queries whose scores are added."""
    different = set(kinds)
    if len(different) > 1:
        return _Kind.MIXED
    return different.pop() if different else _Kind.OTHER


def named(clause: Any, name: str) -> dict[str, Any]:
    """Return a clause with a name."""
    return {"bool": {"must": [clause], "_name": name}}


def with_named(post_filter: Any, clauses: Sequence[Any]) -> dict[str, Any]:
    """Return a filter that also names clauses, whether a document matches them or not."""
    # Lucene adds up the boosts of equal clauses of queries that stand beside one another, if these are scored
    should = [{"constant_score": {"filter": clause}} for clause in clauses]
    return {"bool": {"filter": [post_filter or {_ALL: {}}], "should": should}}


def _constant(at: float) -> Callable[[Any], Any]:
    """Return what replaces clauses of words: the first by a constant score, the others by no score."""
    scores = chain([at], repeat(0.0))
    return lambda _: {"constant_score": {"filter": {_ALL: {}}, "boost": next(scores)}}


def _score_at(hit: Mapping[str, Any], name: str, at: float) -> float:
    """Return what the query makes of a constant; the constant itself for a document that the other parts exclude."""
    return float((hit.get("matched_queries") or {}).get(name, at))


def _linear(value: float, places: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's value at a place, linear between its values at some places and beyond them."""
    left = int(np.clip(np.searchsorted(places, value) - 1, 0, len(places) - 2))
    slope = (rows[:, left + 1] - rows[:, left]) / (places[left + 1] - places[left])
    ends: NDArray[np.float64] = rows[:, left] + slope * (value - places[left])
    return ends

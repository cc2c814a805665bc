"""The parts of a caller's query that documents outside the first pass must match too.

Such documents are found by a vector or a graph, so they need not contain the query's words. Everything else that the
query requires holds for them: these are its filters. A query is read as a tree of what must match:

| clause | its filters |
| --- | --- |
| `match`, `match_bool_prefix` | none, if their text is a text of the search and their field is analysed text in every searched index that has it |
| `multi_match`, `combined_fields` | none, if their text is a text of the search and one of their fields is analysed text; or if they name no fields |
| `query_string`, `simple_query_string` | the same, if the text has no syntax: operators, field names, quotes, wildcards |
| `match_all` | none |
| `neural`, `semantic`, `neural_sparse`, `text_expansion`, `sparse_vector` | those that they name, if their text is a text of the search |
| `knn` | those that it names, if it has no threshold |
| `bool` | `filter`, `must_not`, the filters of each `must`, and as many of `should` as must match |
| `dis_max`, `hybrid` | the filters of one of the queries |
| `pinned` | the filters of its `organic` |
| `function_score`, `script_score` | the filters of its `query`, and a score above 0 if the query gives 1; with `min_score` the clause itself |
| `boosting` | the filters of its `positive`; with a `negative_boost` of 0 that `negative` does not match |
| `rule` | its rules, and the filters of its `organic` |
| any other (`constant_score`, `nested`, `terms_set`, `rank_feature` ...) | the clause itself |
"""  # noqa: E501 - a table

import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from es_ttc.serving.features.field_types import FieldTypes
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.body import fields_of, texts_of
from es_ttc.serving.request.query import (
    FUNCTIONS,
    RULES,
    as_clauses,
    has_no_functions,
    normalised_spaces,
    without_inner_hits,
)

QueryNode = Mapping[str, Any]
IsText = Callable[[str], bool]
"""Returns whether a field is analysed text in every searched index that has it."""

_ANY_OPTION = frozenset({"_name", "boost"})
_FULL_TEXT_OPTIONS = _ANY_OPTION | {
    "analyzer", "auto_generate_synonyms_phrase_query", "cutoff_frequency", "fuzziness", "fuzzy_max_expansions",
    "fuzzy_prefix_length", "fuzzy_rewrite", "fuzzy_transpositions", "lenient", "max_expansions",
    "minimum_should_match", "operator", "prefix_length", "query", "zero_terms_query",
}  # fmt: skip
_STRING_OPTIONS = _FULL_TEXT_OPTIONS | {
    "allow_leading_wildcard", "analyze_wildcard", "default_field", "default_operator", "enable_position_increments",
    "escape", "fields", "flags", "phrase_slop", "quote_analyzer", "quote_field_suffix", "rewrite", "slop",
    "tie_breaker", "time_zone", "type",
}  # fmt: skip
_ONE_FIELD = frozenset({"match", "match_bool_prefix"})
_SEVERAL_FIELDS = frozenset({"combined_fields", "multi_match", "query_string", "simple_query_string"})
_WITH_SYNTAX = frozenset({"query_string", "simple_query_string"})
_TYPES = frozenset({"best_fields", "bool_prefix", "cross_fields", "most_fields"})
_SYNTAX = re.compile(r'[+=&|><!(){}\[\]^"~*?:\\/]|(?<!\w)-|\b(?:AND|OR|NOT|TO)\b')
_OF_A_FIELD = frozenset({"neural", "neural_sparse", "text_expansion"})
_MODEL_TEXTS = ("query", "query_text", "model_text")
_THRESHOLDS = frozenset({"max_distance", "min_score", "similarity"})
_BOOL_OPTIONS = _ANY_OPTION | {"filter", "minimum_should_match", "must", "must_not", "should"}
_LEAST_SCORE = 1e-37
"""Scores are float32: what is less may be 0."""
_PERCENT = re.compile(r"\s*(-?[0-9]{1,3})%\s*")
_INTEGER = re.compile(r"\s*-?[0-9]{1,6}\s*")


class UnknownFilter(Exception):
    """The filters of a query are not known; the message is the reason."""


def required_filters(body: Mapping[str, Any], texts: Sequence[str], is_text: IsText) -> list[Any]:
    """Return queries that every document from outside the first pass must match, for a filter.

    Args:
        body: The search's body, as it is sent to the engine; a `q` of the URL as its `query`.
        texts: The texts by which the section ranks. If the query has one text only, that is a text of the search too.
        is_text: Whether a field is analysed text in every searched index that has it.
    """
    if "retriever" in body:
        raise UnknownFilter("the filters of a [retriever] are not known")
    defined = {name for part in ("derived", "runtime_mappings") for name in body.get(part) or ()}

    def is_mapped_text(name: str) -> bool:
        return not any(name == one or name.startswith(f"{one}.") for one in defined) and is_text(name)

    try:
        own = {normalised_spaces(text) for text in texts_of(body.get("query"))}
        reader = _FilterReader({*map(normalised_spaces, texts)}, own if len(own) == 1 else set(), is_mapped_text)
        filters = [] if not body.get("query") else reader.of(body["query"])
    except RecursionError:
        raise UnknownFilter("[query] is nested too deeply") from None
    for clause in as_clauses(body.get("knn")):
        filters += _of_vectors(clause) if isinstance(clause, Mapping) else [clause]
    if body.get("post_filter"):
        filters.append(body["post_filter"])
    return [without_inner_hits(one) for one in filters]


async def filters_of_search(
    body: Mapping[str, Any], texts: Sequence[str], types: FieldTypes, caller: Caller
) -> list[Any]:
    """Return :func:`required_filters` of a search, with the types of the fields that decide."""
    names = text_fields(body, texts)
    analysed = await types.analysed(names, caller) if names else frozenset[str]()
    return required_filters(body, texts, analysed.__contains__)


def text_fields(body: Mapping[str, Any], texts: Sequence[str]) -> frozenset[str]:
    """Return the fields whose mapping decides which filters a search has."""
    names: set[str] = set()

    def noted(name: str) -> bool:
        names.add(name)
        return True

    required_filters(body, texts, noted)
    return frozenset(names)


class _FilterReader:
    """Reads the filters of one query."""

    def __init__(self, texts: Set[str], own: Set[str], is_text: IsText) -> None:
        self._texts = texts
        self._own = own
        self._is_text = is_text

    def of(self, query: Any) -> list[Any]:
        """Return the required queries of a query; the query itself if its kind or its form is unknown."""
        if not isinstance(query, Mapping) or len(query) != 1:
            return [query]
        [(kind, clause)] = query.items()
        if not isinstance(clause, Mapping):
            return [query]
        if kind == "bool":
            return self._of_bool(query, clause)
        if kind in ("dis_max", "hybrid") and clause.keys() <= _ANY_OPTION | {"queries", "tie_breaker"}:
            return _at_least(1, [self.of(one) for one in as_clauses(clause.get("queries"))])
        if kind == "pinned":
            return self.of(clause.get("organic"))
        if kind in FUNCTIONS:
            return self._of_scored(query, kind, clause)
        if kind == "boosting":
            hidden = {"bool": {"must_not": as_clauses(clause.get("negative"))}}
            return [*self.of(clause.get("positive")), *([] if clause.get("negative_boost", 1) else [hidden])]
        if kind in RULES:
            return [{kind: {**clause, "organic": {"bool": {"filter": self.of(clause.get("organic"))}}}}]
        if kind == "knn":
            return [query] if _has_threshold(clause) else _of_vectors(clause)
        if kind == "match_all":
            return []
        return _filters_of_model(clause) if self._ranks_by_words(kind, clause) else [query]

    def _of_scored(self, query: QueryNode, kind: str, clause: QueryNode) -> list[Any]:
        """Return the filters of functions: they hide a document by a score of 0, whatever words it has."""
        if "min_score" in clause:
            return [query]
        inner = self.of(clause["query"]) if clause.get("query") else []
        if kind == "function_score" and has_no_functions(clause):
            return inner
        every = {"constant_score": {"filter": {"bool": {"filter": inner}} if inner else {"match_all": {}}}}
        return [{kind: {**clause, "query": every, "min_score": _LEAST_SCORE}}]

    def _ranks_by_words(self, kind: str, clause: QueryNode) -> bool:
        """Return whether a clause only ranks by a text of the search."""
        if kind in _ONE_FIELD:
            fields, options = _only_field(clause)
            return options.keys() <= _FULL_TEXT_OPTIONS and self._is_ours(options) and all(map(self._is_text, fields))
        if kind in _SEVERAL_FIELDS:
            named = fields_of(clause)
            if named is None or not clause.keys() <= _STRING_OPTIONS or not self._is_ours(clause):
                return False
            if clause.get("type", "best_fields") not in _TYPES:
                return False
            if kind in _WITH_SYNTAX and _SYNTAX.search(clause["query"]):
                return False
            analysed = [self._is_text(name) for name in named]
            if named and all(analysed):
                return True
            # A search box over texts and codes; with another text in the section it may be a restriction.
            return normalised_spaces(clause["query"]) in self._texts and (not named or any(analysed))
        if kind in ("semantic", "sparse_vector"):
            return self._is_ours(clause)
        if kind in _OF_A_FIELD:
            return self._is_ours(_only_field(clause)[1]) and not _has_threshold(clause)
        return False

    def _is_ours(self, options: QueryNode) -> bool:
        texts = [options[key] for key in _MODEL_TEXTS if key in options]
        if len(texts) != 1 or not isinstance(texts[0], str):
            return False
        text = normalised_spaces(texts[0])
        return text in self._texts or text in self._own

    def _of_bool(self, query: QueryNode, clause: QueryNode) -> list[Any]:
        should = as_clauses(clause.get("should"))
        of_must = [filter_ for part in as_clauses(clause.get("must")) for filter_ in self.of(part)]
        if not clause.keys() <= _BOOL_OPTIONS:
            return [query]
        filters = [*as_clauses(clause.get("filter")), *of_must]
        excluded = as_clauses(clause.get("must_not"))
        if excluded:
            filters.append({"bool": {"must_not": excluded}})
        if not should:
            return filters
        alone = not clause.get("must") and not clause.get("filter")
        minimum = clause.get("minimum_should_match")
        least = _least(minimum, len(should))
        if least is None:
            return [*filters, {"bool": {"should": should, "minimum_should_match": minimum}}]
        return [*filters, *_at_least(max(least, int(alone)), [self.of(one) for one in should])]


def _at_least(least: int, filters: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the required queries of clauses of which some must match; one without filters counts as matched."""
    real = [some for some in filters if some]
    least -= len(filters) - len(real)
    if least <= 0:
        return []
    if not real:  # an empty `bool` would match every document
        return [{"match_none": {}}]
    return [{"bool": {"should": [{"bool": {"filter": [*one]}} for one in real], "minimum_should_match": least}}]


def _least(given: Any, count: int) -> int | None:
    """Return how many of some clauses must match; None for a form that is not read."""
    if given is None:
        return 0
    text = str(given)
    if percent := _PERCENT.fullmatch(text):
        number = int(count * int(percent[1]) / 100)
    elif _INTEGER.fullmatch(text) and not isinstance(given, bool):
        number = int(text)
    else:
        return None
    negative = text.strip().startswith("-")
    return max(0, count + number if negative else number)


def _of_vectors(clause: QueryNode) -> list[Any]:
    """Return the filters of a kNN clause, which are in it or below the name of its field."""
    if "field" in clause:
        return as_clauses(clause.get("filter"))
    return as_clauses(_only_field(clause)[1].get("filter"))


def _filters_of_model(clause: QueryNode) -> list[Any]:
    """Return the filters of a clause that ranks by a model."""
    return as_clauses(clause.get("filter")) + as_clauses(_only_field(clause)[1].get("filter"))


def _has_threshold(clause: QueryNode) -> bool:
    return not _THRESHOLDS.isdisjoint(clause.keys() | _only_field(clause)[1].keys())


def _only_field(clause: QueryNode) -> tuple[list[str], QueryNode]:
    """Return the field of a clause such as `match`, and its options; no options if its form is another."""
    fields = [name for name in clause if name not in _ANY_OPTION]
    if len(fields) != 1:
        return [], {}
    options = clause[fields[0]]
    return fields, options if isinstance(options, Mapping) else {"query": options}

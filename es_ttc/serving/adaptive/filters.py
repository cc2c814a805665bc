"""What of a caller's search binds documents that the first pass did not find.

A walk is there to find documents that the query's words or vector miss. So what ranks by text or vectors does not bind
it; whatever else the search demands does: filters, exclusions, every clause that is no text or vector search,
even where it stands among clauses that score. What is not known here is taken as a demand.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Query = Mapping[str, Any]

_RANKING = frozenset(
    {
        "combined_fields", "distance_feature", "match", "match_all", "match_bool_prefix", "match_phrase",
        "match_phrase_prefix", "more_like_this", "multi_match", "neural", "neural_sparse", "query_string",
        "rank_feature", "semantic", "simple_query_string", "sparse_vector", "text_expansion",
    }
)  # fmt: skip
_FILTERED = frozenset({"knn"})
_WRAPPING: Mapping[str, str] = {
    "boosting": "positive",
    "function_score": "query",
    "script_score": "query",
}
_ANY_OF: Mapping[str, str] = {"dis_max": "queries", "hybrid": "queries"}


def required_filters(body: Mapping[str, Any], *, query_in_url: bool) -> list[Any]:
    """Return queries that every document of a walk must match, for a filter.

    Args:
        body: The search's body, as the engine is asked it.
        query_in_url: Whether the query is the URL's `q`, which wins over the body's.
    """
    found = [] if query_in_url or not body.get("query") else _of_query(body["query"])
    for clause in _listed(body.get("knn")):
        found += _listed(clause.get("filter"))
    if body.get("post_filter"):
        found.append(body["post_filter"])
    return found


def _of_query(query: Any) -> list[Any]:
    """Return what a query demands; the query itself where it is not known."""
    if not isinstance(query, Mapping) or len(query) != 1:
        return [query]
    [(kind, told)] = query.items()
    if kind in _RANKING:
        return []
    if not isinstance(told, Mapping):
        return [query]
    if kind in _FILTERED:
        return _of_knn(told)
    if kind == "bool":
        return _of_bool(told)
    if kind in _WRAPPING:
        inner = told.get(_WRAPPING[kind])
        limits = "min_score" in told
        return [query] if limits or inner is None else _of_query(inner)
    if kind in _ANY_OF:
        return _any_of(_listed(told.get(_ANY_OF[kind])))
    return [query]


def _of_knn(told: Query) -> list[Any]:
    if "field" in told:
        return _listed(told.get("filter"))
    fields = list(told.values())
    inner = fields[0] if len(fields) == 1 and isinstance(fields[0], Mapping) else {}
    return _listed(inner.get("filter"))


def _of_bool(told: Query) -> list[Any]:
    found = [*_listed(told.get("filter"))]
    for clause in _listed(told.get("must")):
        found += _of_query(clause)
    excluded = _listed(told.get("must_not"))
    if excluded:
        found.append({"bool": {"must_not": [*excluded]}})
    should = _listed(told.get("should"))
    wanted = told.get("minimum_should_match", 0 if told.get("must") or told.get("filter") else 1)
    if should and wanted not in (0, "0", "0%"):
        if wanted not in (1, "1") and any(_of_query(clause) for clause in should):
            return [*found, {"bool": {"should": [*should], "minimum_should_match": wanted}}]
        found += _any_of(should)
    return found


def _any_of(clauses: Sequence[Any]) -> list[Any]:
    """Return what is demanded where one of several clauses is enough: nothing, if one of them demands nothing."""
    each = [_of_query(clause) for clause in clauses]
    if not all(each):
        return []
    return [{"bool": {"should": [{"bool": {"filter": one}} for one in each], "minimum_should_match": 1}}]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]

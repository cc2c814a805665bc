"""The parts of a caller's query that documents outside the first pass must match too.

A graph traversal finds documents that the query's words or vector miss. So clauses that rank by text or vectors are not
required. All others are: filters, exclusions, and every clause that is no text or vector search, also among scoring
clauses. A clause of an unknown kind is required.
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
    """Return queries that every document of a graph traversal must match, for a filter.

    Args:
        body: The search's body, as it is sent to the engine.
        query_in_url: Whether the query is the URL's `q`, which replaces the body's.
    """
    found = [] if query_in_url or not body.get("query") else _of_query(body["query"])
    for clause in _listed(body.get("knn")):
        found += _listed(clause.get("filter"))
    if body.get("post_filter"):
        found.append(body["post_filter"])
    return found


def _of_query(query: Any) -> list[Any]:
    """Return the required queries of a query; the query itself if its kind is unknown."""
    if not isinstance(query, Mapping) or len(query) != 1:
        return [query]
    [(kind, clause_body)] = query.items()
    if kind in _RANKING:
        return []
    if not isinstance(clause_body, Mapping):
        return [query]
    if kind in _FILTERED:
        return _of_knn(clause_body)
    if kind == "bool":
        return _of_bool(clause_body)
    if kind in _WRAPPING:
        inner = clause_body.get(_WRAPPING[kind])
        limits = "min_score" in clause_body
        return [query] if limits or inner is None else _of_query(inner)
    if kind in _ANY_OF:
        return _any_of(_listed(clause_body.get(_ANY_OF[kind])))
    return [query]


def _of_knn(clause_body: Query) -> list[Any]:
    if "field" in clause_body:
        return _listed(clause_body.get("filter"))
    fields = list(clause_body.values())
    inner = fields[0] if len(fields) == 1 and isinstance(fields[0], Mapping) else {}
    return _listed(inner.get("filter"))


def _of_bool(clause_body: Query) -> list[Any]:
    found = [*_listed(clause_body.get("filter"))]
    for clause in _listed(clause_body.get("must")):
        found += _of_query(clause)
    excluded = _listed(clause_body.get("must_not"))
    if excluded:
        found.append({"bool": {"must_not": [*excluded]}})
    should = _listed(clause_body.get("should"))
    minimum = clause_body.get("minimum_should_match", 0 if clause_body.get("must") or clause_body.get("filter") else 1)
    if should and minimum not in (0, "0", "0%"):
        if minimum not in (1, "1") and any(_of_query(clause) for clause in should):
            return [*found, {"bool": {"should": [*should], "minimum_should_match": minimum}}]
        found += _any_of(should)
    return found


def _any_of(clauses: Sequence[Any]) -> list[Any]:
    """Return the required queries of clauses of which one must match: none, if one of them requires nothing."""
    each = [_of_query(clause) for clause in clauses]
    if not all(each):
        return []
    return [{"bool": {"should": [{"bool": {"filter": one}} for one in each], "minimum_should_match": 1}}]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]

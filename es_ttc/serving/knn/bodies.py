"""Searches that find documents by kNN, in the syntax of each engine."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from es_ttc.engine.versions import Product
from es_ttc.index.mappings.spec import SPAN_VECTOR, SPANS, TOKEN_VECTOR, TOKENS, VECTOR
from es_ttc.retrievers.base import Vectors
from es_ttc.vectors.tokens import Float32

Body = dict[str, Any]
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_ANYWHERE = {"ignore_unmapped": True}
"""For queries over several indices, some of which may have no such vectors."""
_PATHS: Mapping[Vectors, tuple[str, str | None]] = {
    Vectors.POOLED: (VECTOR, None),
    Vectors.SPANS: (SPAN_VECTOR, SPANS),
    Vectors.TOKENS: (TOKEN_VECTOR, TOKENS),
}
"""For each kind of vectors their field, and the nested object that contains it."""
FIELDS: Mapping[Vectors, str] = {among: field for among, (field, _) in _PATHS.items()}

_EXACT: Mapping[Product, Callable[[str, list[float]], Body]] = {
    "elasticsearch": lambda field, vector: {
        "source": f"(1.0 + cosineSimilarity(params.vector, '{field}')) / 2.0",
        "params": {"vector": vector},
    },
    "opensearch": lambda field, vector: {
        "lang": "knn",
        "source": "knn_score",
        "params": {"field": field, "query_value": vector, "space_type": "cosinesimil"},
    },
}


def search_body(
    product: Product,
    vector: Float32,
    k: int,
    filters: Sequence[Any],
    *,
    options: Mapping[str, Any] = NO_OPTIONS,
    among: Vectors = Vectors.POOLED,
    num_candidates: int | None = None,
    exact: bool = False,
) -> Body:
    """Return the part of a `_search` body that finds documents by kNN."""
    field, nested = _PATHS[among]
    values = vector.tolist()
    if exact:
        found = _exactly(field, nested, values, filters, product)
    elif product == "elasticsearch":
        found = _elasticsearchs(field, values, k, filters, num_candidates, options)
    else:
        found = _opensearchs(field, nested, values, k, filters, num_candidates, options)
    return {**found, "size": k, "track_total_hits": False}


def _elasticsearchs(
    field: str,
    values: list[float],
    k: int,
    filters: Sequence[Any],
    num_candidates: int | None,
    options: Mapping[str, Any],
) -> Body:
    knn: Body = {"field": field, "query_vector": values, "k": k, **options}
    if num_candidates is not None:
        knn["num_candidates"] = num_candidates
    if filters:
        knn["filter"] = [*filters]
    return {"knn": knn}


def _opensearchs(
    field: str,
    nested: str | None,
    values: list[float],
    k: int,
    filters: Sequence[Any],
    num_candidates: int | None,
    options: Mapping[str, Any],
) -> Body:
    # k applies to each shard's index, `size` to the whole result.
    knn: Body = {"vector": values, "k": max(k, num_candidates or k), **options, **_ANYWHERE}
    if filters:
        knn["filter"] = all_of(filters)
    query: Body = {"knn": {field: knn}}
    return {"query": query if nested is None else _below(nested, query)}


def _exactly(field: str, nested: str | None, values: list[float], filters: Sequence[Any], product: Product) -> Body:
    scored: Body = {"script_score": {"query": {"exists": {"field": field}}, "script": _EXACT[product](field, values)}}
    if nested is not None:
        scored = _below(nested, scored)
    return {"query": {"bool": {"must": [scored], "filter": [*filters]}}}


def _below(nested: str, query: Body) -> Body:
    return {"nested": {"path": nested, "score_mode": "max", "query": query, **_ANYWHERE}}


def all_of(filters: Sequence[Any]) -> Any:
    """Return one query that matches the documents that all filters match."""
    return filters[0] if len(filters) == 1 else {"bool": {"filter": [*filters]}}

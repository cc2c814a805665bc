"""Searches over the fields of an index, for both products."""

from collections.abc import Mapping, Sequence
from typing import Any

from es_ttc.engine.versions import Product
from es_ttc.index.mappings.spec import VECTOR
from es_ttc.vectors.tokens import Float32

MAX_KNN_CANDIDATES = 10_000  # Elasticsearch's own limit

TIE_BREAKER = 0.5  # weight of the fields other than the best one, as in BEIR's own Elasticsearch baseline


def matching(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the query that ranks documents by BM25 over some text fields."""
    if len(fields) == 1:
        return {"match": {fields[0]: text}}
    return {"multi_match": {"query": text, "fields": [*fields], "tie_breaker": TIE_BREAKER}}


def nearest_body(
    vector: Float32, k: int, product: Product, *, among: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the part of a `_search` body that finds the k documents nearest by pooled vector, which match `among`."""
    values, filtered = vector.tolist(), {} if among is None else {"filter": among}
    if product == "opensearch":
        return {"query": {"knn": {VECTOR: {"vector": values, "k": k, **filtered}}}}
    candidates = max(k, min(MAX_KNN_CANDIDATES, max(2 * k, 100)))
    return {"knn": {"field": VECTOR, "query_vector": values, "k": k, "num_candidates": candidates, **filtered}}

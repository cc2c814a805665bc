"""Hybrid: words and vectors fused, as Elasticsearch's `rrf` and `linear` retrievers and OpenSearch's processors do."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.blend.normalise import RRF_K, leading, min_max
from es_ttc.rescorers.blend.signals import documents_with, signal_scores
from es_ttc.rescorers.blend.weights import has_few_words
from es_ttc.vectors.tokens import Float32


class HybridParams(Params):
    """What hybrid can be told."""

    fusion: Literal["rrf", "weighted"] = Field(
        "rrf",
        description="`rrf`: reciprocal rank fusion, the sum of 1 / (k + rank). `weighted`: the weighted mean of both "
        "scores, each brought to 0..1 over the window's documents.",
    )
    k: int = Field(RRF_K, ge=0, le=10_000, description="Constant added to every rank by `rrf`.")
    rank_window_size: int = Field(
        100, ge=1, le=10_000, description="Documents of each ranking that `rrf` reads; further ones add nothing."
    )
    lexical_weight: float = Field(0.5, ge=0, le=1, description="Weight of the first pass by `weighted`; dense has 1 -.")


class HybridRescorer:
    """The first pass's ranking and that by pooled vectors, fused by reciprocal rank or by a weighted mean.

    The documents nearest to the query join the window, as with `blend`, which ranks better on most collections. Those
    that the query's words single out stand above the others, which fusion alone does not do.
    """

    name: ClassVar[str] = "hybrid"
    Params: ClassVar[type[Params]] = HybridParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = False
    joins_nearest: ClassVar[bool] = True

    def needs(self, params: HybridParams) -> frozenset[Feature]:  # noqa: ARG002
        """The first pass's scores and the pooled vectors."""
        return frozenset({Feature.FIRST_PASS, Feature.POOLED})

    def takes(self, params: HybridParams) -> frozenset[Feature]:  # noqa: ARG002
        """Nothing further."""
        return frozenset()

    def score(self, query: Query, window: Window, params: HybridParams) -> Float32:
        """Return the fused scores, ``(k,)``."""
        dense = signal_scores("dense", query, window)
        found = documents_with(frozenset({Feature.FIRST_PASS}), window)
        if params.fusion == "weighted":
            everywhere = np.ones(len(window), np.bool_)
            weight = np.float32(params.lexical_weight)
            lexical = min_max(window.first_pass, everywhere)
            fused = weight * lexical + (1 - weight) * min_max(dense.scores, dense.known)
        else:
            lexical = list_scores(window.first_pass, found, params)
            fused = lexical + list_scores(dense.scores, dense.known, params)
        leads = leading(window.first_pass, few_words=has_few_words(query.text))
        raised: Float32 = fused + fused.max(initial=0) * leads
        return raised

    def detail(self, query: Query, window: Window, params: HybridParams) -> list[dict[str, Any]]:  # noqa: ARG002
        """Return each document's two scores."""
        dense = signal_scores("dense", query, window)
        return [
            {
                "signals": {
                    "lexical": {"score": round(float(window.first_pass[place]), 6)},
                    "dense": {"score": round(float(dense.scores[place]), 6) if dense.known[place] else None},
                }
            }
            for place in range(len(window))
        ]

    def summary(self, query: Query, window: Window, params: HybridParams) -> dict[str, Any]:  # noqa: ARG002
        """Return the two signals."""
        return {"signals": ["lexical", "dense"]}


def list_scores(scores: Float32, known: Any, params: HybridParams) -> Float32:
    """Return ``1 / (k + rank)`` of the best documents of one ranking, ``(k,)``; 0 for all others."""
    fused = np.zeros(len(scores), np.float32)
    best = np.flatnonzero(known)[np.argsort(-scores[known], kind="stable")][: params.rank_window_size]
    fused[best] = 1 / (params.k + np.arange(1, len(best) + 1))
    return fused

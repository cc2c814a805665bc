"""Maximal marginal relevance: each next document is near the query and unlike those already picked.

The default lambda is the greatest of .02, .05, .1, .15, .2 whose Recall@5 and Comp@5 are within two standard errors of
dense retrieval's (.272 and .076 against .277 and .080) on 800 train queries of ToolLens (seeded sample,
all-MiniLM-L6-v2, windows of 100); the first five resemble each other less (mean cosine .677 against .698).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.vectors.tokens import Float32


class MmrParams(Params):
    """What MMR can be told."""

    model_config = ConfigDict(serialize_by_alias=True)

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {
        "lambda": (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    }

    trade_off: float = Field(
        0.05,
        alias="lambda",
        ge=0,
        le=1,
        description="Weight of being unlike the documents already picked, against 1 - lambda for being near the "
        "query: 0 orders as `dense` does; the greater, the more diverse.",
    )
    relevance: Literal["cosine", "score"] = Field(
        "cosine",
        description="What being near to the query means: the cosine of the pooled vectors, or the score that the "
        "documents come with, from 0 for the lowest to 1 for the greatest. After a reranker take `score`, so that its "
        "order counts.",
    )
    documents: int = Field(
        100, ge=1, le=10_000, description="Documents that are picked; the rest follow in first-pass order."
    )


class MmrRescorer:
    """Select one document after the other, by the greatest `(1 - lambda) relevance - lambda similarity`.

    Similarity is the greatest cosine with any document already selected, 0 for the first. Lambda is that of the paper
    on NNN decoding (appendix B.3); Carbonell and Goldstein (SIGIR 1998) write 1 - lambda for it. Scores tell the order
    alone: of k documents the first gets 1, the last 1/k.
    """

    name: ClassVar[str] = "mmr"
    Params: ClassVar[type[Params]] = MmrParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = False

    def needs(self, params: MmrParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def score(self, query: Query, window: Window, params: MmrParams) -> Float32:
        """Return the scores, ``(k,)``."""
        assert window.pooled is not None  # noqa: S101 - promised by needs
        picked, _ = greedy(_relevance(query, window, params), window.pooled, params.trade_off, params.documents)
        order = np.concatenate((picked, np.setdiff1d(np.arange(len(window)), picked)))  # the rest stays ascending
        scores = np.empty(len(window), np.float32)
        scores[order] = np.arange(len(window), 0, -1) / max(1, len(window))
        return scores

    def detail(self, query: Query, window: Window, params: MmrParams) -> list[dict[str, Any]]:
        """Return how each picked document came to be picked.

        ``picked`` (1 for the first), ``relevance`` and, after the first, ``similarity`` to the nearest document picked
        before it, and that one's id as ``nearest``.
        """
        assert window.pooled is not None  # noqa: S101 - promised by needs
        relevances = _relevance(query, window, params)
        picked, nearest = greedy(relevances, window.pooled, params.trade_off, params.documents)
        details: list[dict[str, Any]] = [{} for _ in range(len(window))]
        for turn, (place, other) in enumerate(zip(picked.tolist(), nearest.tolist(), strict=True), 1):
            details[place] = {"picked": turn, "relevance": float(relevances[place])}
            if turn > 1:
                similarity = float(window.pooled[place] @ window.pooled[other])
                details[place] |= {"similarity": similarity, "nearest": window.ids[other]}
        return details


def _relevance(query: Query, window: Window, params: MmrParams) -> Float32:
    assert window.pooled is not None  # noqa: S101 - promised by needs
    if params.relevance == "cosine":
        return relevance_scores(query, window.pooled)
    return scaled(window.first_pass)


def scaled(scores: Float32) -> Float32:
    """Return scores from 0 for the lowest to 1 for the greatest, ``(k,)``; all 1 where they are equal."""
    if not len(scores) or scores.max() == scores.min():
        return np.ones(len(scores), np.float32)
    spread: Float32 = (scores - scores.min()) / (scores.max() - scores.min())
    return spread


def relevance_scores(query: Query, pooled: Float32) -> Float32:
    """Return each document's greatest cosine with a query vector, ``(k,)``."""
    cosines: Float32 = np.max(pooled @ query.vectors.T, axis=1)
    return cosines


def greedy(
    relevances: Float32, pooled: Float32, trade_off: float, documents: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pick documents by maximal marginal relevance, from ``(k,)`` relevances and ``(k, d)`` unit rows.

    Returns their places in order, and for each that of the nearest one picked before it (its own for the first).
    """
    count = min(documents, len(relevances))
    picked = np.empty(count, np.intp)
    nearest = np.arange(len(relevances))
    similarity = np.zeros_like(relevances)
    left = np.ones(len(relevances), np.bool_)
    for turn in range(count):
        marginal = np.float32(1 - trade_off) * relevances - np.float32(trade_off) * similarity
        place = int(np.argmax(np.where(left, marginal, -np.inf)))
        picked[turn] = place
        left[place] = False
        cosines = pooled @ pooled[place]
        nearer = left if turn == 0 else left & (cosines > similarity)
        similarity[nearer] = cosines[nearer]
        nearest[nearer] = place
    return picked, nearest[picked]

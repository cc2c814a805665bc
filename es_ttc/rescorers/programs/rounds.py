"""The rounds of the programs from CrossRoundRRF on: a first ranking, queries refined by it, further rankings."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.programs.channels import Hybrid
from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.anchors import bottom, consensus, top
from es_ttc.rescorers.programs.primitives.feedback import around_median, centroids, residual, rocchio
from es_ttc.rescorers.programs.primitives.fusion import order_of, reciprocal_rank_fusion
from es_ttc.vectors.tokens import Float32

Anchors = NDArray[np.intp]

LEAST_RESIDUAL = 0.1  # norm of the residual query below which round 3 falls back to round 1 (B.6)

LEAST_AGREEMENT = 0.5
"""Minimum cosine of query and expanded query; below it the first round replaces an expansion's (B.7's "adaptive gate",
whose rule the paper does not state): an anchor's sentence must not outweigh the query. On SciFact's train queries any
gate up to .7 gives the same result (`benchmarks.programs_constants` at commit cf4207f0)."""


@dataclass(slots=True)
class RoundSearch:
    """A batch of ``(q, d)`` queries over ``(n, d)`` documents, and the ``(q, n)`` scores of its rounds, by name."""

    queries: Float32
    documents: Float32
    context: Context
    hybrid: Hybrid
    rounds: dict[str, Float32]

    @classmethod
    def begin(cls, queries: Float32, documents: Float32, context: Context, *, cross: bool = False) -> "RoundSearch":
        """Rank by the plain query, its Rocchio update and its residual: the three rounds of B.6."""
        hybrid = Hybrid(documents, context, all_lexical=True, cross=cross)
        search = cls(queries, documents, context, hybrid, {})
        first = search.add("first", hybrid.round(queries))
        above, below = around_median(first)
        positive = centroids(documents, above)
        search.add("rocchio", hybrid.round(rocchio(queries, positive, centroids(documents, below))))
        rest = residual(queries, positive)
        kept = np.linalg.norm(rest, axis=1, keepdims=True) >= LEAST_RESIDUAL
        search.add("residual", np.where(kept, hybrid.round(rest), first))
        return search

    def add(self, name: str, scores: Float32) -> Float32:
        """Add a round and return its scores."""
        self.rounds[name] = self.context.note(name, scores)
        return scores

    def fused(self) -> Float32:
        """Return the reciprocal rank fusion over rounds: a document must rank well in all of them (B.6)."""
        return reciprocal_rank_fusion(list(self.rounds.values()))

    def orders(self) -> Anchors:
        """Return each query's documents by the rounds so far, ``(q, n)`` positions, best first; ties by cosine."""
        return order_of(self.fused(), self.queries @ self.documents.T)

    def expanded(self, anchors: Anchors, adapter: str) -> Float32:
        """Return the queries with their anchors' best sentences, encoded, ``(q, d)``."""
        return self.context.expand(self.queries, anchors, adapter)

    def add_expansion(self, name: str, expanded: Float32) -> None:
        """Add an expansion's round; if the gate is closed, the first round replaces it."""
        agreement = np.einsum("ij,ij->i", self.queries, expanded)[:, None]
        self.add(name, np.where(agreement >= LEAST_AGREEMENT, self.hybrid.round(expanded), self.rounds["first"]))

    def add_consensus(self, orders: Anchors) -> None:
        """Add the Rocchio round of consensus filtering (B.8)."""
        positive = np.zeros_like(self.queries)
        negative = np.zeros_like(self.queries)
        for row, order in enumerate(orders):
            core, others = consensus(order, self.documents)
            positive[row] = self.documents[core].mean(axis=0)
            negative[row] = self.documents[others].mean(axis=0)
        self.add("consensus", self.hybrid.round(rocchio(self.queries, positive, negative)))

    def extremes(self, orders: Anchors, share: float) -> tuple[Float32, Float32]:
        """Return the centroids of each ranking's best and worst share, each ``(q, d)``."""
        best = np.stack([self.documents[top(order, share)].mean(axis=0) for order in orders])
        worst = np.stack([self.documents[bottom(order, share)].mean(axis=0) for order in orders])
        return best, worst


def each(pick: Callable[[Anchors], int], orders: Anchors) -> Anchors:
    """Return one anchor a query, picked from its ranking."""
    return np.array([pick(order) for order in orders], np.intp)

"""The guarantee that reranker-guided search takes over from the bi-metric framework (Xu et al., arXiv 2406.02891).

    python -m benchmarks.rgs_guarantee

If the reranker's distance D is a metric and d <= D <= C d for the vectors' distance d, then a graph that RobustPrune
has built on d with alpha, from all documents and without a limit on neighbours, is one with alpha / C for D; and on
such a graph a greedy search ends within (alpha + 1) / (alpha - 1) of the nearest distance (Indyk and Xu 2023, as in
Gollapudi et al., PMLR 267, 2025). So there is a bound where alpha is above C. It is checked where C is known: unit
vectors, and D = |A (x - y)| with the singular values of A between 1 and C.
"""

import argparse
import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import heading, table
from es_ttc.reranking.graph import NO_NEIGHBOUR, GraphParams, NeighbourGraph, build
from es_ttc.reranking.strategies import PointwiseBudgetedReranker, rgs

Float64 = NDArray[np.float64]

DIMS, DOCUMENTS, QUERIES = 3, 250, 100
FACTORS = (1.0, 1.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Searches of one factor and one graph.

    Attributes:
        factor: C.
        alpha: RobustPrune's.
        bound: What the theorem allows as the ratio of the found distance to the nearest; infinite for none.
        neighbours: Neighbours of a document, the mean.
        ratios: The ratio of each search.
    """

    factor: float
    alpha: float
    bound: float
    neighbours: float
    ratios: Float64

    @property
    def within(self) -> int:
        """The number of searches within the bound."""
        return int((self.ratios <= self.bound * (1 + 1e-6)).sum())


@dataclass(frozen=True, slots=True)
class Walk:
    """The neighbour graph for a strategy, and distances as the scores of a reranker, negated."""

    graph: NeighbourGraph
    distances: Float64

    async def of(self, documents: Sequence[int]) -> list[list[int]]:
        """Return each document's neighbours."""
        return [self.graph.of(document).tolist() for document in documents]

    def expect(self, documents: Sequence[int]) -> None:
        """Read nothing ahead."""

    async def scores(self, documents: Sequence[int]) -> list[float]:
        """Return the scores."""
        return [-float(self.distances[document]) for document in documents]


def bound(alpha: float, factor: float) -> float:
    """Return the theorem's ratio of the found distance to the nearest, infinite where alpha is not above C."""
    own = alpha / factor
    return (own + 1) / (own - 1) if own > 1 else math.inf


def constructed(factor: float, alpha: float, *, whole: bool = True, seed: int = 0) -> Outcome:
    """Search greedily (a list of one document, one random seed) where C is known.

    Args:
        factor: C, 1 or more.
        alpha: RobustPrune's, above 1.
        whole: Neighbours from all documents, without a limit, as the theorem has it; else the default graph's numbers.
        seed: Of documents, queries, D and starts.
    """
    random = np.random.default_rng(seed)
    documents, queries = _unit(random, DOCUMENTS), _unit(random, QUERIES)
    rotation, _ = np.linalg.qr(random.standard_normal((DIMS, DIMS)))
    stretch = rotation * np.geomspace(1, factor, DIMS)
    most = {"degree": DOCUMENTS - 1, "candidates": DOCUMENTS - 1} if whole else {}
    graph = build(documents.astype(np.float32), GraphParams(alpha=alpha, **most))
    ratios = []
    for query in queries:
        distances = np.linalg.norm((documents - query) @ stretch, axis=1)
        start = int(random.integers(DOCUMENTS))
        found = asyncio.run(greedy(Walk(graph, distances), start))
        ratios.append(distances[found] / distances.min())
    neighbours = float((graph.table != NO_NEIGHBOUR).sum(axis=1).mean())
    return Outcome(factor, alpha, bound(alpha, factor) if whole else math.inf, neighbours, np.array(ratios))


async def greedy(walk: Walk, start: int) -> int:
    """Return where RGS ends with one seed and a list of one document."""
    return (await rgs([start], walk, PointwiseBudgetedReranker(walk, DOCUMENTS), seeds=1, length=1)).documents[0]


def outcomes() -> list[Outcome]:
    """Return the searches on graphs that the theorem is about, at 1.1, 1.5 and 2 times C."""
    return [constructed(factor, factor * above) for factor in FACTORS for above in (1.1, 1.5, 2.0)]


def default_graph(factor: float) -> Outcome:
    """Return the searches on a graph with the default parameters, for which there is no bound."""
    return constructed(factor, GraphParams().alpha, whole=False)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    data = f"{DOCUMENTS} random unit vectors of {DIMS} components, {QUERIES} queries"
    print(heading("The guarantee of reranker-guided search", data=data))
    rows = [(*_cells(one), "all documents") for one in outcomes()]
    rows += [(*_cells(default_graph(factor)), "16 of 64") for factor in FACTORS]
    print(table(("C", "alpha", "neighbours", "bound", "worst ratio", "nearest found", "neighbours from"), rows))


def _cells(one: Outcome) -> tuple[str, ...]:
    allowed = "none" if math.isinf(one.bound) else f"{one.bound:.2f}"
    exact = (one.ratios <= 1 + 1e-9).mean()
    return (
        f"{one.factor:g}",
        f"{one.alpha:.4g}",
        f"{one.neighbours:.0f}",
        allowed,
        f"{one.ratios.max():.2f}",
        f"{exact:.0%}",
    )


def _unit(random: np.random.Generator, count: int) -> Float64:
    rows = random.standard_normal((count, DIMS))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


if __name__ == "__main__":
    main()

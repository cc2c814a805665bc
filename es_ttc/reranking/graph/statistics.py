"""Statistics of a neighbour graph: degrees, components, reachability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.reranking.graph.nearest import NO_NEIGHBOUR, NeighbourGraph


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """Statistics of a graph: least, median and greatest degree; sizes of weakly connected components, descending."""

    documents: int
    edges: int
    out_degrees: tuple[int, float, int]
    in_degrees: tuple[int, float, int]
    isolated: int
    components: tuple[int, ...]


def statistics(graph: NeighbourGraph) -> GraphStatistics:
    """Measure a graph."""
    out_degrees = graph.degrees
    in_degrees = np.bincount(graph.table[graph.table != NO_NEIGHBOUR], minlength=len(graph))
    lonely = (out_degrees == 0) & (in_degrees == 0)
    labels = _components(graph)
    sizes = np.bincount(labels[~lonely])
    return GraphStatistics(
        documents=len(graph),
        edges=int(out_degrees.sum()),
        out_degrees=_spread(out_degrees),
        in_degrees=_spread(in_degrees),
        isolated=int(lonely.sum()),
        components=tuple(sorted((int(size) for size in sizes if size), reverse=True)),
    )


def reachable(graph: NeighbourGraph, seeds: Sequence[int]) -> NDArray[np.intp]:
    """Return each document's number of steps from the nearest seed, ``(n,)``; -1 if there is no path."""
    steps = np.full(len(graph), -1, np.intp)
    shore = np.unique(np.asarray(seeds, np.intp))
    distance = 0
    while len(shore):
        steps[shore] = distance
        distance += 1
        onward = np.unique(graph.table[shore]).astype(np.intp)
        onward = onward[onward != NO_NEIGHBOUR]
        shore = onward[steps[onward] < 0]
    return steps


def _spread(values: NDArray[np.intp]) -> tuple[int, float, int]:
    if not len(values):
        return 0, 0.0, 0
    return int(values.min()), float(np.median(values)), int(values.max())


def _components(graph: NeighbourGraph) -> NDArray[np.intp]:
    """Label weakly connected components: the least label spreads along edges both ways until none changes."""
    sources, places = np.nonzero(graph.table != NO_NEIGHBOUR)
    targets = graph.table[sources, places]
    labels = np.arange(len(graph), dtype=np.intp)
    while True:
        spread = labels.copy()
        np.minimum.at(spread, sources, labels[targets])
        np.minimum.at(spread, targets, labels[sources])
        spread = spread[spread]  # jump to the label's own label: a logarithmic number of iterations
        if np.array_equal(spread, labels):
            return labels
        labels = spread

"""The neighbour graph of a corpus: build, prune, update and measure it. Arrays in, arrays out."""

from es_ttc.reranking.graph.build import GraphParams, build
from es_ttc.reranking.graph.nearest import NO_NEIGHBOUR, NeighbourGraph
from es_ttc.reranking.graph.statistics import GraphStatistics, statistics
from es_ttc.reranking.graph.update import takers_of, update_neighbours

__all__ = [
    "NO_NEIGHBOUR",
    "GraphParams",
    "GraphStatistics",
    "NeighbourGraph",
    "build",
    "statistics",
    "takers_of",
    "update_neighbours",
]

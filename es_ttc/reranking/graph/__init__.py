"""The neighbour graph of a corpus: build, prune, update and measure it. Arrays in, arrays out."""

from es_ttc.reranking.graph.build import GraphParams, build
from es_ttc.reranking.graph.nearest import ABSENT, NeighbourGraph
from es_ttc.reranking.graph.statistics import GraphStatistics, statistics
from es_ttc.reranking.graph.update import takers_of, update

__all__ = ["ABSENT", "GraphParams", "GraphStatistics", "NeighbourGraph", "build", "statistics", "takers_of", "update"]

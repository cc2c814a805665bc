"""The neighbour graph of an index, stored in the engine: build, update, show and delete it."""

from es_ttc.reranking.index_graph.build import BuildProgress, build_graph
from es_ttc.reranking.index_graph.statistics import GraphReport, show_graph
from es_ttc.reranking.index_graph.store import delete_graphs, graphs_of, serving_graph
from es_ttc.reranking.index_graph.update import GraphUpdate, update_graph

__all__ = [
    "BuildProgress",
    "GraphReport",
    "GraphUpdate",
    "build_graph",
    "delete_graphs",
    "graphs_of",
    "serving_graph",
    "show_graph",
    "update_graph",
]

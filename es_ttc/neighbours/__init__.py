"""The neighbour graph of an index in the engine: building it, following changes, showing and deleting it."""

from es_ttc.neighbours.build import Built, build_graph
from es_ttc.neighbours.show import Shown, show_graph
from es_ttc.neighbours.stored import delete_graphs, graphs_of, serving_graph
from es_ttc.neighbours.update import Mended, update_graph

__all__ = [
    "Built",
    "Mended",
    "Shown",
    "build_graph",
    "delete_graphs",
    "graphs_of",
    "serving_graph",
    "show_graph",
    "update_graph",
]

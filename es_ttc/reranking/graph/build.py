"""Build a neighbour graph from the documents' vectors."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from es_ttc.reranking.graph import nearest
from es_ttc.reranking.graph.nearest import NeighbourGraph, Numbers
from es_ttc.reranking.graph.prune import robust_prune
from es_ttc.vectors.tokens import Float32

EXACT_UP_TO = 50_000  # maximum number of documents for comparing every pair; above, an HNSW index finds the candidates


class GraphParams(BaseModel):
    """Parameters of a graph; stored with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    degree: int = Field(16, ge=1, le=256, description="R: neighbours that a document has at most.")
    candidates: int = Field(64, ge=1, le=1024, description="Nearest documents among which neighbours are chosen.")
    alpha: float = Field(1.2, ge=1, le=10, description="RobustPrune's alpha: the greater, the more near ones survive.")


NeighbourSearch = Literal["exact", "hnsw"]

_ROWS = 1024  # number of documents per step


def method_for(documents: int) -> NeighbourSearch:
    """Return how the nearest documents are found in a corpus of a given size."""
    return "exact" if documents <= EXACT_UP_TO else "hnsw"


def build(vectors: Float32, params: GraphParams | None = None) -> NeighbourGraph:
    """Return the graph of a corpus of ``(n, d)`` unit rows."""
    params = params or GraphParams()
    every = np.arange(len(vectors), dtype=np.int32)
    tables = [table for _, table in steps(vectors, every, params)]
    return NeighbourGraph(np.concatenate(tables) if tables else np.empty((0, params.degree), np.int32))


def steps(
    vectors: Float32, rows: Numbers, params: GraphParams, method: NeighbourSearch | None = None
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield batches of documents with their neighbours, ``(m,)`` and ``(m, R)``, in a corpus of unit rows."""
    index = None
    if (method or method_for(len(vectors))) == "hnsw":
        index = nearest.Hnsw(vectors, params.candidates)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        candidates, _ = index.nearest(some) if index else nearest.exact(vectors, params.candidates, rows=some)
        yield some, robust_prune(vectors, some, candidates, params.degree, params.alpha)

"""Building a neighbour graph from the documents' vectors."""

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from es_ttc.graph import nearest
from es_ttc.graph.neighbours import NeighbourGraph
from es_ttc.graph.prune import robust_prune
from es_ttc.vectors.tokens import Float32

EXACT_UP_TO = 50_000
"""Documents up to which every pair is compared; above, an HNSW index finds the candidates."""


class GraphParams(BaseModel):
    """How a graph is built; kept beside it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    degree: int = Field(16, ge=1, le=256, description="R: neighbours that a document has at most.")
    candidates: int = Field(64, ge=1, le=1024, description="Nearest documents among which neighbours are chosen.")
    alpha: float = Field(1.2, ge=1, le=10, description="RobustPrune's alpha: the greater, the more near ones survive.")


def build(vectors: Float32, params: GraphParams | None = None) -> NeighbourGraph:
    """Return the graph of a corpus.

    Args:
        vectors: ``(n, d)`` unit rows.
        params: Degree, candidates, alpha.

    Raises:
        ConfigurationError: There are more than :data:`EXACT_UP_TO` documents and usearch is not installed.
    """
    params = params or GraphParams()
    find = nearest.exact if len(vectors) <= EXACT_UP_TO else nearest.approximate
    candidates, _ = find(vectors, params.candidates)
    every = np.arange(len(vectors), dtype=np.int32)
    return NeighbourGraph(robust_prune(vectors, every, candidates, params.degree, params.alpha))

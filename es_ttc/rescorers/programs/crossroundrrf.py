"""CrossRoundRRF (B.6): the query refined by its results, and rankings fused over three rounds."""

from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.rounds import Search
from es_ttc.vectors.tokens import Float32


def crossroundrrf(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return ``RRF(rank_R1, rank_R2, rank_R3)``: the plain query, its Rocchio update, its residual."""
    return Search.begin(Q, D, ctx).fused()

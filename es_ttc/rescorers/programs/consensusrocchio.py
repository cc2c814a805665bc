"""ConsensusRocchio (B.8): feedback from those top documents that are similar to each other."""

from es_ttc.rescorers.programs.diversedualctx import dual_context
from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.rounds import Search
from es_ttc.vectors.tokens import Float32


def consensusrocchio(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return DiverseDualCtx with queries also encoded as passages, and a round of consensus feedback."""
    search, _ = consensus_search(Q, D, ctx)
    return search.fused()


def consensus_search(Q: Float32, D: Float32, ctx: Context) -> tuple[Search, Float32]:
    """Return the program's rounds, and the queries expanded by their dominant anchors."""
    search = Search.begin(Q, D, ctx, cross=True)
    dominant = dual_context(search)
    search.add_consensus(search.orders())
    return search, dominant

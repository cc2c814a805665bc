"""NegContrastive (B.9): contrast with the query expanded by the worst document."""

from es_ttc.rescorers.programs.consensusrocchio import consensus_search
from es_ttc.rescorers.programs.interface import QUERY, Context
from es_ttc.rescorers.programs.primitives.feedback import contrast
from es_ttc.vectors.tokens import Float32


def negcontrastive(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return ConsensusRocchio with one more round: ``normalise(q_pos - q_neg)`` of two expansions."""
    search, dominant = consensus_search(Q, D, ctx)
    negative = search.expanded(search.orders()[:, -1], QUERY)
    search.add("contrast", search.hybrid.round(contrast(dominant, negative)))
    return search.fused()

"""SoftCentroid, Rocchio (appendix D), and plain fusion (section 4.4): baselines of the programs."""

from es_ttc.rescorers.programs.interface import Context, Program
from es_ttc.rescorers.programs.primitives.feedback import interpolate, top_centroid
from es_ttc.vectors.tokens import Float32

DEPTHS = (2, 3, 5, 10)
WEIGHTS = (0.1, 0.3, 0.5, 0.7)
"""The sixteen Rocchio/VPRF configurations of appendix D."""


def feedback(depth: int, weight: float, temperature: float | None = None) -> Program:
    """Return the program that scores by the query interpolated with the centroid of its best documents.

    Args:
        weight: Of the centroid, in [0, 1].
        temperature: Of the softmax weights; None for a uniform mean (classical Rocchio without negatives, VPRF).
    """

    def program(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
        return ctx.note("feedback", interpolate(Q, top_centroid(D, S, depth, temperature), weight) @ D.T)

    return program


softcentroid = feedback(3, 0.5, 0.05)
"""SoftCentroid at the paper's universal default: K = 3, alpha = 0.5, tau = 0.05."""

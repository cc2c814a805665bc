"""SentMaxSim (B.2): a document's score is that of its best sentence."""

from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.matching import max_sim
from es_ttc.vectors.tokens import Float32


def sentmaxsim(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the greatest cosine of the query with any sentence of the document."""
    sentences = ctx.chunks("sentences")
    return ctx.note("sentences", max_sim(Q @ sentences.vectors.T, sentences.starts))

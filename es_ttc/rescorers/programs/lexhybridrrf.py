"""LexicalHybridRRF (B.5): vectors and words, fused by reciprocal rank."""

from es_ttc.rescorers.programs.channels import Hybrid, noted
from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
from es_ttc.vectors.tokens import Float32


def lexhybridrrf(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return the reciprocal rank fusion of nine embedding channels and two lexical ones: words and word bigrams."""
    return reciprocal_rank_fusion(list(noted(Hybrid(D, ctx, all_lexical=False)(Q), ctx).values()))

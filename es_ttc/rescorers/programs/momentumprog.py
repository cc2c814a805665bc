"""MomentumProg (B.10): anchors by change of rank, expanded under each adapter."""

import numpy as np

from es_ttc.rescorers.programs.interface import CLASSIFICATION, MATCHING, PASSAGE, QUERY, Context
from es_ttc.rescorers.programs.primitives.anchors import diverse, momentum
from es_ttc.rescorers.programs.primitives.feedback import contrast
from es_ttc.rescorers.programs.primitives.fusion import ranks
from es_ttc.rescorers.programs.rounds import Search, each
from es_ttc.vectors.tokens import Float32

VIEWS = (QUERY, MATCHING, CLASSIFICATION, PASSAGE)


def momentumprog(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return NegContrastive with anchors by momentum, and expansions under four adapters.

    Momentum is the change of rank from the plain cosine to the first refinement (Rocchio). The document that rose most
    replaces the dominant anchor, the one that fell most the bottom-ranked one. Encoder passes over the queries: four
    positive expansions, the diverse one, the negative one, and queries as passages: 7, as in the paper's costs.
    """
    return momentum_search(Q, D, S, ctx).fused()


def momentum_search(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Search:
    """Return the program's rounds."""
    search = Search.begin(Q, D, ctx, cross=True)
    orders = search.orders()
    before, after = ranks(S), ranks(search.rounds["rocchio"])
    pairs = [momentum(*row) for row in zip(orders, before, after, strict=True)]
    risen, fallen = np.array(pairs, np.intp).T
    expansions = {adapter: search.expanded(risen, adapter) for adapter in VIEWS}
    unlike = search.expanded(each(lambda order: diverse(order, D), orders), QUERY)
    for adapter, expanded in expansions.items():
        search.add_expansion(f"momentum.{adapter}", expanded)
    search.add_expansion("diverse", unlike)
    search.add_consensus(search.orders())
    opposed = contrast(expansions[QUERY], search.expanded(fallen, QUERY))
    search.add("contrast", search.hybrid.round(opposed))
    return search

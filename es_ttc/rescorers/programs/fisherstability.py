"""FisherStability (B.12): the direction between the best and the worst documents, and agreement of all channels."""

import numpy as np

from es_ttc.rescorers.programs.graphcentrality import graph_search
from es_ttc.rescorers.programs.interface import QUERY, Context
from es_ttc.rescorers.programs.primitives.anchors import diverse
from es_ttc.rescorers.programs.primitives.discriminant import fisher, rank_stability
from es_ttc.rescorers.programs.primitives.feedback import contrast
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
from es_ttc.rescorers.programs.rounds import each
from es_ttc.vectors.tokens import Float32

FEEDBACK = ("rocchio", "residual", "consensus", "contrast", "graph contrast")


def fisherstability(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return the reciprocal rank fusion of 22 channels; 19 with `lexical: engine`, for one lexical channel of four.

    The paper states the number 22 but not the list. Here the channels are: the 14 of the plain query (eight of B.4,
    documents encoded as queries, queries encoded as passages, four lexical), five feedback rounds (Rocchio, residual,
    consensus, both contrasts), a last contrast, Fisher's direction and rank stability. The last contrast uses the three
    passes that remain of the paper's costs: the best, the least similar and the worst document of GraphCentrality's
    ranking; its positive side is the mean of the first two.
    """
    search = graph_search(Q, D, S, ctx)
    orders = search.orders()
    leading = search.expanded(orders[:, 0], QUERY)
    unlike = search.expanded(each(lambda order: diverse(order, D), orders), QUERY)
    worst = search.expanded(orders[:, -1], QUERY)
    search.add("last contrast", search.hybrid.round(contrast(np.float32(0.5) * (leading + unlike), worst)))
    channels = {**search.hybrid(Q), **{name: search.rounds[name] for name in (*FEEDBACK, "last contrast")}}
    channels["fisher"] = ctx.note("fisher", fisher(D, *search.extremes(orders, 1 / 4)))
    channels["stability"] = ctx.note("stability", rank_stability(list(channels.values())))
    return reciprocal_rank_fusion(list(channels.values()))

"""GraphCentrality (B.11): anchors by the similarity of documents to each other."""

from es_ttc.rescorers.programs.interface import QUERY, Context
from es_ttc.rescorers.programs.momentumprog import momentum_search
from es_ttc.rescorers.programs.primitives.anchors import central, hardest_negative
from es_ttc.rescorers.programs.primitives.feedback import contrast
from es_ttc.rescorers.programs.rounds import Search, each
from es_ttc.vectors.tokens import Float32


def graphcentrality(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:
    """Return MomentumProg with rounds from the most central top document and the hardest negative.

    The paper's costs allow three passes over the queries for the additions: the central anchor, the hardest negative
    (contrasted with it), and a third one that the text does not name; here, the best document of the ranking so far.
    """
    return graph_search(Q, D, S, ctx).fused()


def graph_search(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Search:
    """Return the program's rounds."""
    search = momentum_search(Q, D, S, ctx)
    orders = search.orders()
    positive = search.expanded(each(lambda order: central(order, D), orders), QUERY)
    negative = search.expanded(each(lambda order: hardest_negative(order, D), orders), QUERY)
    leading = search.expanded(orders[:, 0], QUERY)
    search.add_expansion("central", positive)
    search.add_expansion("leading", leading)
    search.add("graph contrast", search.hybrid.round(contrast(positive, negative)))
    return search

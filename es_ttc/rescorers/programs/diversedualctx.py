"""DiverseDualCtx (B.7): the query expanded by sentences of two dissimilar documents of its results."""

from es_ttc.rescorers.programs.interface import QUERY, Context
from es_ttc.rescorers.programs.primitives.anchors import diverse
from es_ttc.rescorers.programs.rounds import Search, each
from es_ttc.vectors.tokens import Float32


def diversedualctx(Q: Float32, D: Float32, S: Float32, ctx: Context) -> Float32:  # noqa: ARG001
    """Return CrossRoundRRF's rounds fused with two expansions: by the best and the least similar top document."""
    search = Search.begin(Q, D, ctx)
    dual_context(search)
    return search.fused()


def dual_context(search: Search) -> Float32:
    """Add both expansions' rounds and return the queries expanded by the dominant anchor, ``(q, d)``."""
    orders = search.orders()
    dominant = search.expanded(orders[:, 0], QUERY)
    unlike = search.expanded(each(lambda order: diverse(order, search.documents), orders), QUERY)
    search.add_expansion("dominant", dominant)
    search.add_expansion("diverse", unlike)
    return dominant

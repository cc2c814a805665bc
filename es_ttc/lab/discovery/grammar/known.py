"""The paper's programs as trees, as initial programs of a search. Tests compare them with the programs' own scores."""

from es_ttc.lab.discovery.grammar.trees import Tree

_Q, _D, _S = Tree("Q"), Tree("D"), Tree("S")
_GRANULARITIES = ("sentences", "pairs", "paragraphs")


def _best(granularity: str) -> Tree:
    return Tree("best", (_Q, Tree("chunks", (), (granularity,))))


def _coverage() -> tuple[Tree, ...]:
    """Return the eight channels of CoverageTriple (B.4)."""
    whole = [Tree("cosine", (_Q, Tree("debias", (documents,)))) for documents in (_D, Tree("topic"))]
    chunked = []
    for granularity in _GRANULARITIES:
        pieces = Tree("debiased", (Tree("chunks", (), (granularity,)),))
        chunked += [Tree("best", (_Q, pieces)), Tree("topmean", (_Q, pieces))]
    return (*whole, *chunked)


def _rounds() -> tuple[Tree, Tree, list[Tree]]:
    """Return the channels, the first round, and all three rounds of CrossRoundRRF (B.6)."""
    hybrid = Tree("hybrid", (), (True, False))
    first = Tree("round", (hybrid, _Q))
    moved = Tree("round", (hybrid, Tree("rocchio", (_Q, first))))
    rest = Tree("residual", (_Q, first))
    remaining = Tree("substantial", (rest, Tree("round", (hybrid, rest)), first), (0.1,))
    return hybrid, first, [first, moved, remaining]


def _dual() -> Tree:
    """Return DiverseDualCtx (B.7)."""
    hybrid, first, rounds = _rounds()
    order = Tree("order", (Tree("rrf", tuple(rounds)),))
    for anchor in ("first", "diverse"):
        expanded = Tree("expanded", (_Q, Tree(anchor, (order,))), ("QUERY",))
        rounds.append(Tree("gated", (expanded, Tree("round", (hybrid, expanded)), first), (0.5,)))
    return Tree("rrf", tuple(rounds))


KNOWN: dict[str, Tree] = {
    "sentmaxsim": _best("sentences"),
    "adaptgran": Tree("zmax", (_best("paragraphs"), _best("sentences"))),
    "covtriple": Tree("zsum", _coverage()),
    "lexhybridrrf": Tree("rrf", (*_coverage(), Tree("cosine", (_Q, Tree("reversed"))), Tree("words"), Tree("bigrams"))),
    "crossroundrrf": Tree("rrf", tuple(_rounds()[2])),
    "diversedualctx": _dual(),
}

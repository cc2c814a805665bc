"""Graph-based Adaptive Reranking: batches in turn from the first pass and from the neighbours of what scored best.

MacAvaney, Tonellotto and Macdonald, Adaptive Re-Ranking with a Corpus Graph (CIKM 2022), algorithm 1.
"""

from collections.abc import Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, Neighbours, RerankedList, reranked_so_far


async def gar(
    first_pass: Sequence[int],
    neighbourhood: Neighbours,
    judge: BudgetedReranker,
    *,
    batch: int = 16,
    seeds: int | None = None,
    alternate: bool = True,
) -> RerankedList:
    """Score batches until the budget is spent.

    Args:
        first_pass: Documents, best first.
        neighbourhood: The neighbour graph.
        judge: The reranker, which must give scores, and its budget.
        batch: Documents scored at once.
        seeds: Documents of the first batch; as many as of the others where None.
        alternate: Whether every other batch is from the first pass; else it is gone to for want of neighbours only,
            which makes this a best-first search.
    """
    met: set[int] = set()
    frontier: dict[int, tuple[float, int]] = {}  # document -> (score of the best document that led to it, that one)
    found_from: dict[int, int] = {}
    from_graph = False
    while judge.left:
        pool = [document for document in first_pass if document not in met]
        reached = sorted(frontier, key=lambda document: -frontier[document][0])
        source = reached if (from_graph and reached) or not pool else pool
        size = batch if met or seeds is None else seeds
        chosen = source[: min(size, judge.left)]
        if not chosen:
            break
        from_graph = not (alternate and from_graph)
        found_from.update((document, frontier[document][1]) for document in chosen if source is reached)
        met.update(chosen)
        for document in chosen:
            frontier.pop(document, None)
        neighbourhood.expect(chosen)
        await judge.sort(chosen)
        await _widen(frontier, chosen, met, neighbourhood, judge)
    ranked = await judge.sort(judge.judged)
    return reranked_so_far(ranked, first_pass, judge, found_from)


async def _widen(
    frontier: dict[int, tuple[float, int]],
    scored: Sequence[int],
    met: set[int],
    neighbourhood: Neighbours,
    judge: BudgetedReranker,
) -> None:
    """Add the neighbours of documents just scored; of several that lead to one the best scored counts."""
    for document, neighbours in zip(scored, await neighbourhood.of(scored), strict=True):
        score = judge.score(document)
        if score is None:
            continue
        for neighbour in neighbours:
            if neighbour not in met and (neighbour not in frontier or frontier[neighbour][0] < score):
                frontier[neighbour] = (score, document)

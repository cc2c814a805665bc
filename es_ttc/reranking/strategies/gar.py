"""Graph-based Adaptive Reranking: batches in turn from the first pass and from neighbours of the best documents.

MacAvaney, Tonellotto and Macdonald, Adaptive Re-Ranking with a Corpus Graph (CIKM 2022), algorithm 1.
"""

from collections.abc import Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, Neighbours, RerankedList, reranked_so_far


async def gar(
    first_pass: Sequence[int],
    neighbourhood: Neighbours,
    reranker: BudgetedReranker,
    *,
    batch: int = 16,
    seeds: int | None = None,
    alternate: bool = True,
) -> RerankedList:
    """Score batches until the budget is spent.

    Unless they `alternate`, the first pass is used only when there are no neighbours: a best-first search.
    """
    met: set[int] = set()
    frontier: dict[int, tuple[float, int]] = {}  # document -> (score of the best document that led to it, that one)
    found_from: dict[int, int] = {}
    from_graph = False
    while reranker.left:
        pool = [document for document in first_pass if document not in met]
        reached = sorted(frontier, key=lambda document: -frontier[document][0])
        source = reached if (from_graph and reached) or not pool else pool
        size = batch if met or seeds is None else seeds
        chosen = source[: min(size, reranker.left)]
        if not chosen:
            break
        from_graph = not (alternate and from_graph)
        found_from.update((document, frontier[document][1]) for document in chosen if source is reached)
        met.update(chosen)
        for document in chosen:
            frontier.pop(document, None)
        neighbourhood.expect(chosen)
        await reranker.sort(chosen)
        await _widen(frontier, chosen, met, neighbourhood, reranker)
    ranked = await reranker.sort(reranker.judged)
    return reranked_so_far(ranked, first_pass, reranker, found_from)


async def _widen(
    frontier: dict[int, tuple[float, int]],
    scored: Sequence[int],
    met: set[int],
    neighbourhood: Neighbours,
    reranker: BudgetedReranker,
) -> None:
    """Add the neighbours of documents just scored. If several documents lead to one, the best score counts."""
    for document, neighbours in zip(scored, await neighbourhood.of(scored), strict=True):
        score = reranker.score(document)
        if score is None:
            continue
        for neighbour in neighbours:
            if neighbour not in met and (neighbour not in frontier or frontier[neighbour][0] < score):
                frontier[neighbour] = (score, document)

"""Reranker-Guided Search: a greedy search through the neighbour graph in which the reranker is the measure of distance.

Xu et al., Beyond Sequential Reranking: Reranker-Guided Search Improves Reasoning Intensive Retrieval (ICLR 2026),
algorithm 1. The paper leaves open what happens when nothing is left to expand before the budget is spent: here the next
documents of the first pass join the list, so that with an empty graph the search is retrieve and rerank.

The default number of seeds is the best of 5, 10, 20 and 50 on 300 train queries of SciFact (simulated reranker wrong
about 5 % of pairs, budget 100: nDCG@10 .477, .498, .538, .538; `python -m benchmarks.reranking --tune`).
"""

from collections.abc import Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, Neighbours, RerankedList, reranked_so_far

_AHEAD = 3  # number of documents whose neighbours are read ahead


async def rgs(
    first_pass: Sequence[int],
    neighbourhood: Neighbours,
    reranker: BudgetedReranker,
    *,
    seeds: int = 20,
    length: int = 50,
) -> RerankedList:
    """Expand the best document that is not expanded yet, rerank its neighbours, and repeat.

    Documents that are cut from the list of L are not expanded, and rank below it.
    """
    waiting = list(dict.fromkeys(first_pass))
    met: set[int] = set()
    found_from: dict[int, int] = {}
    expanded: set[int] = set()
    cut: list[int] = []
    ranked: list[int] = []

    async def take(documents: Sequence[int]) -> None:
        nonlocal ranked, cut
        met.update(documents)
        likely = [document for document in (*ranked, *documents) if document not in expanded]
        neighbourhood.expect(likely[:_AHEAD])  # while the reranker works
        ranked = await reranker.sort([*ranked, *documents])
        ranked, cut = ranked[:length], [*ranked[length:], *cut]

    def next_of_first_pass(count: int) -> list[int]:
        fresh = [document for document in waiting if document not in met]
        return fresh[:count]

    await take(next_of_first_pass(seeds))
    while reranker.left:
        best = next((document for document in ranked if document not in expanded), None)
        if best is None:
            more = next_of_first_pass(seeds)
            if not more:
                break
            await take(more)
            continue
        expanded.add(best)
        (neighbours,) = await neighbourhood.of([best])
        new = [document for document in dict.fromkeys(neighbours) if document not in met]
        if new:
            found_from.update(dict.fromkeys(new, best))
            await take(new)
    return reranked_so_far([*ranked, *cut], first_pass, reranker, found_from)

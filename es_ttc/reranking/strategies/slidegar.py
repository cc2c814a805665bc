"""SlideGAR: the sliding window of a listwise reranker, fed in turn from the first pass and from neighbours.

Rathee, MacAvaney and Anand, Guiding Retrieval using LLM-based Listwise Rankers (ECIR 2025), algorithm 1, as the paper
on Reranker-Guided Search describes it: of the window's neighbours the w/2 nearest to the query are taken, and the
others are dropped.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from es_ttc.reranking.strategies.base import Neighbours, RerankedList, reranked_so_far
from es_ttc.reranking.strategies.listwise import ListwiseBudgetedReranker

Frontier = Literal["dropped", "kept"]

Nearness = Callable[[Sequence[int]], Awaitable[Sequence[float]]]  # by vectors, greater is nearer


async def slidegar(
    first_pass: Sequence[int],
    neighbourhood: Neighbours,
    reranker: ListwiseBudgetedReranker,
    nearness: Nearness,
    *,
    frontier: Frontier = "dropped",
) -> RerankedList:
    """Keep the better half of the window, fill it up, and repeat until the budget is spent."""
    step = reranker.window // 2
    met: set[int] = set()
    sources: dict[int, int] = {}  # neighbour -> the document whose neighbour it is
    found_from: dict[int, int] = {}
    beaten: list[int] = []
    window = list(dict.fromkeys(first_pass))[: reranker.window]
    from_graph = True
    while window:
        met.update(window)
        neighbourhood.expect(window)
        ordered = await reranker.order(window)
        if ordered is None:
            break
        if frontier == "dropped":
            sources = {}
        for document, neighbours in zip(ordered, await neighbourhood.of(ordered), strict=True):
            sources.update((neighbour, document) for neighbour in neighbours if neighbour not in sources)
        pool = [document for document in first_pass if document not in met]
        reached = await _nearest([document for document in sources if document not in met], nearness)
        turn_of_graph = bool(reached) and (from_graph or not pool)
        from_graph = not from_graph
        fresh = (reached if turn_of_graph else pool)[:step]
        if turn_of_graph:
            found_from.update((document, sources[document]) for document in fresh)
        if not fresh:
            window = ordered
            break
        window, beaten = [*ordered[:step], *fresh], [*beaten, *ordered[step:]]
    # Each dropped document ranked below the better half of its window; those dropped first come first.
    return reranked_so_far([*window[:step], *beaten, *window[step:]], first_pass, reranker, found_from)


async def _nearest(documents: Sequence[int], nearness: Nearness) -> list[int]:
    """Return documents, nearest to the query first."""
    by_document = dict(zip(documents, await nearness(documents) if documents else (), strict=True))
    return sorted(documents, key=lambda document: -by_document[document])

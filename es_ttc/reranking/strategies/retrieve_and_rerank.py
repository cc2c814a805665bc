"""The baseline: rerank the first pass from its top."""

from collections.abc import Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, RerankedList, reranked_so_far
from es_ttc.reranking.strategies.listwise import ListwiseBudgetedReranker


async def retrieve_and_rerank(first_pass: Sequence[int], reranker: BudgetedReranker) -> RerankedList:
    """Rerank as many documents of the first pass as the budget allows.

    Args:
        first_pass: Documents, best first.
        reranker: The budgeted reranker; a listwise one makes one pass over as many documents as one pass can pay for.
    """
    reach = (
        within_one_pass(reranker, len(first_pass)) if isinstance(reranker, ListwiseBudgetedReranker) else reranker.left
    )
    ranked = await reranker.sort(first_pass[:reach])
    return reranked_so_far(ranked, first_pass, reranker)


def within_one_pass(reranker: ListwiseBudgetedReranker, documents: int) -> int:
    """Return the number of documents over which one pass of the window can slide within the budget."""
    window, step = reranker.window, reranker.window // 2
    if not reranker.pays_repeats or reranker.left <= window:
        return min(reranker.left, documents)
    turns = (reranker.left - window) // window  # after the first one, each sends a whole window for w/2 new documents
    return min(window + turns * step, documents)

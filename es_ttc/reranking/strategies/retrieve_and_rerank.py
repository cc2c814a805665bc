"""The baseline: rerank the first pass from its top."""

from collections.abc import Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, RerankedList, reranked_so_far
from es_ttc.reranking.strategies.listwise import ListwiseBudgetedReranker


async def retrieve_and_rerank(first_pass: Sequence[int], judge: BudgetedReranker) -> RerankedList:
    """Rerank as many documents of the first pass as the budget allows.

    Args:
        first_pass: Documents, best first.
        judge: The reranker and its budget; a listwise one makes one pass over the documents that one pass can pay for.
    """
    reach = within_one_pass(judge, len(first_pass)) if isinstance(judge, ListwiseBudgetedReranker) else judge.left
    ranked = await judge.sort(first_pass[:reach])
    return reranked_so_far(ranked, first_pass, judge)


def within_one_pass(judge: ListwiseBudgetedReranker, documents: int) -> int:
    """Return over how many documents one pass of the window can slide within the budget."""
    window, step = judge.window, judge.window // 2
    if not judge.pays_repeats or judge.left <= window:
        return min(judge.left, documents)
    turns = (judge.left - window) // window  # after the first one, each shows a whole window for w/2 new documents
    return min(window + turns * step, documents)

"""The baseline: rerank the first pass from its top."""

from collections.abc import Sequence

from es_ttc.reranking.base import Judge, Walk, walked
from es_ttc.reranking.listwise import ListwiseJudge


async def retrieve_and_rerank(first_pass: Sequence[int], judge: Judge) -> Walk:
    """Rerank as many documents of the first pass as the budget allows.

    Args:
        first_pass: Documents, best first.
        judge: The reranker and its budget; a listwise one makes one pass over the documents that one pass can pay for.
    """
    reach = within_one_pass(judge, len(first_pass)) if isinstance(judge, ListwiseJudge) else judge.left
    ranked = await judge.sort(first_pass[:reach])
    return walked(ranked, first_pass, judge)


def within_one_pass(judge: ListwiseJudge, documents: int) -> int:
    """Return over how many documents one pass of the window can slide within the budget."""
    window, step = judge.window, judge.window // 2
    if not judge.pays_repeats or judge.left <= window:
        return min(judge.left, documents)
    turns = (judge.left - window) // window  # after the first one, each shows a whole window for w/2 new documents
    return min(window + turns * step, documents)

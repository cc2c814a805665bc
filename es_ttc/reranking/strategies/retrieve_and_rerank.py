"""The baseline: rerank the first pass from its top."""

from collections.abc import Sequence

import numpy as np

from es_ttc.reranking.strategies.base import BudgetedReranker, RerankedList, reranked_so_far
from es_ttc.reranking.strategies.listwise import ListwiseBudgetedReranker
from es_ttc.rescorers.blend.normalise import logistic, z_scores
from es_ttc.vectors.tokens import Float32


async def retrieve_and_rerank(first_pass: Sequence[int], reranker: BudgetedReranker) -> RerankedList:
    """Rerank as many documents of the first pass as the budget, or one pass of a listwise window, allows."""
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


def mixed(reranked: Float32, first_pass: Float32, weight: float) -> Float32:
    """Return ``1 / (1 + exp(-mean))``, the mean of z-scores of a reranker, ``(n,)``, and weighted ones before it."""
    known = np.ones(len(reranked), np.bool_)
    return logistic((z_scores(reranked, known) + weight * z_scores(first_pass, known)) / (1 + weight))

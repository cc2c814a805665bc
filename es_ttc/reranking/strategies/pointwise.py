"""A judge over a reranker that gives scores: every document is paid for once, and its score is kept."""

import math
from collections.abc import Mapping, Sequence

from es_ttc.reranking.strategies.base import Budget, BudgetExhausted, PartialScores, PointwiseScorer


class PointwiseBudgetedReranker(Budget):
    """Sorts documents by their scores.

    Args:
        reranker: What scores documents.
        budget: Distinct documents that may be scored.
    """

    def __init__(self, reranker: PointwiseScorer, budget: int) -> None:
        super().__init__(budget)
        self._reranker = reranker
        self._scores: dict[int, float] = {}

    @property
    def judged(self) -> Sequence[int]:
        """Documents that have a score, in the order of their first showing."""
        return tuple(self._scores)

    def score(self, document: int) -> float | None:
        """Return a document's score, or None where it has none."""
        return self._scores.get(document)

    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Score what has no score yet, from the front, and return all by score; without one they come last.

        Equal scores keep the order that they came in.
        """
        new = [document for document in dict.fromkeys(documents) if document not in self._scores][: max(0, self.left)]
        if new:
            await self._score(new)
        return sorted(documents, key=lambda document: -self._scores.get(document, -math.inf))

    async def _score(self, documents: list[int]) -> None:
        self.pay(len(documents))
        scores: Mapping[int, float]
        try:
            answer = list(await self._reranker.scores(documents))
        except PartialScores as error:
            self.fail(error.cause)
            scores = error.scores
            if isinstance(error.cause, BudgetExhausted):
                self.pay(len(scores) - len(documents))  # the others were never shown
        except Exception as error:  # noqa: BLE001 - a failing reranker ends the walk, it does not break it
            self.fail(error)
            self.pay(-len(documents) if isinstance(error, BudgetExhausted) else 0)
            return
        else:
            if len(answer) != len(documents):
                self.fail(ValueError(f"the reranker gave {len(answer)} scores for {len(documents)} documents"))
                return
            scores = dict(enumerate(answer))
        if not all(map(math.isfinite, scores.values())):
            self.fail(ValueError("the reranker gave a score that is not finite"))
            return
        self._scores.update((documents[place], float(score)) for place, score in sorted(scores.items()))

"""A budgeted reranker over a reranker that returns scores: every document counts once, and its score is kept."""

import math
from collections.abc import Mapping, Sequence

from es_ttc.reranking.strategies.base import BudgetedReranker, BudgetExhausted, PartialScores, PointwiseScorer


class PointwiseBudgetedReranker(BudgetedReranker):
    """Sorts documents by their scores."""

    def __init__(self, reranker: PointwiseScorer, budget: int) -> None:
        super().__init__(budget)
        self._reranker = reranker
        self._scores: dict[int, float] = {}

    @property
    def judged(self) -> Sequence[int]:
        """Documents that have a score, in the order in which they were first sent."""
        return tuple(self._scores)

    def score(self, document: int) -> float | None:
        """Return a document's score, or None where it has none."""
        return self._scores.get(document)

    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Score documents that have no score yet, from the front, and return all by score; those without one come last.

        Documents with equal scores keep their order.
        """
        new = [document for document in dict.fromkeys(documents) if document not in self._scores][: max(0, self.left)]
        if new:
            await self._score(new)
        return sorted(documents, key=lambda document: -self._scores.get(document, -math.inf))

    async def _score(self, documents: list[int]) -> None:
        self.spent += len(documents)
        scores: Mapping[int, float]
        try:
            answer = list(await self._reranker.scores(documents))
        except PartialScores as error:
            self.failure = error.cause
            scores = error.scores
            if isinstance(error.cause, BudgetExhausted):
                self.spent += len(scores) - len(documents)  # the others were not sent
        except Exception as error:  # noqa: BLE001 - a failing reranker ends the search without an error
            self.failure = error
            self.spent -= len(documents) if isinstance(error, BudgetExhausted) else 0
            return
        else:
            if len(answer) != len(documents):
                self.failure = ValueError(f"the reranker gave {len(answer)} scores for {len(documents)} documents")
                return
            scores = dict(enumerate(answer))
        if not all(map(math.isfinite, scores.values())):
            self.failure = ValueError("the reranker gave a score that is not finite")
            return
        self._scores.update((documents[place], float(score)) for place, score in sorted(scores.items()))

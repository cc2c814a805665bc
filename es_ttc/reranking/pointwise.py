"""A judge over a reranker that gives scores: every document is paid for once, and its score is kept."""

import math
from collections.abc import Sequence

from es_ttc.reranking.base import Judge, Listwise, Pointwise


class PointwiseJudge:
    """Sorts documents by their scores.

    Args:
        reranker: What scores documents.
        budget: Distinct documents that may be scored.
    """

    def __init__(self, reranker: Pointwise, budget: int) -> None:
        self._reranker = reranker
        self._budget = budget
        self._scores: dict[int, float] = {}
        self._spent = 0
        self._failure: Exception | None = None

    @property
    def left(self) -> int:
        """Documents that may still be scored; 0 after a failure."""
        return 0 if self._failure else self._budget - self._spent

    @property
    def spent(self) -> int:
        """Distinct documents that were sent to the reranker."""
        return self._spent

    @property
    def judged(self) -> Sequence[int]:
        """Documents that have a score, in the order of their first showing."""
        return tuple(self._scores)

    @property
    def failure(self) -> Exception | None:
        """Why the reranker failed."""
        return self._failure

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
        self._spent += len(documents)
        try:
            scores = list(await self._reranker.scores(documents))
        except Exception as error:  # noqa: BLE001 - a failing reranker ends the walk, it does not break it
            self._failure = error
            return
        if len(scores) != len(documents):
            self._failure = ValueError(f"the reranker gave {len(scores)} scores for {len(documents)} documents")
        elif not all(map(math.isfinite, scores)):
            self._failure = ValueError("the reranker gave a score that is not finite")
        else:
            self._scores.update(zip(documents, map(float, scores), strict=True))


class _Ordering:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def order(self, documents: Sequence[int]) -> Sequence[int]:
        return await self._judge.sort(documents)


def as_listwise(judge: PointwiseJudge) -> Listwise:
    """Return a listwise reranker that orders by a pointwise judge's scores, each of which is paid for once."""
    return _Ordering(judge)

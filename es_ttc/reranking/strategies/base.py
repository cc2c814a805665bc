"""The parts that all strategies use: protocols of rerankers and neighbours, the budget, and the result."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class PartialScores(Exception):
    """A reranker failed after it had scored some documents."""

    def __init__(self, scores: Mapping[int, float], cause: Exception) -> None:
        super().__init__(str(cause))
        self.scores = scores
        self.cause = cause


class BudgetExhausted(Exception):
    """The cost limit of a search is reached: the reranker is not called again. The reranker has not failed."""


@runtime_checkable
class PointwiseScorer(Protocol):
    """A reranker that scores each document by itself."""

    async def scores(self, documents: Sequence[int]) -> Sequence[float]:
        """Return one score for each document, greater is better. Any other answer counts as a failure.

        Raises:
            PartialScores: It failed after some documents; the scores in the exception are used.
            BudgetExhausted: The cost limit of the search is reached.
        """


@runtime_checkable
class ListwiseSorter(Protocol):
    """A reranker that puts a few documents in order."""

    async def order(self, documents: Sequence[int]) -> Sequence[int]:
        """Return the documents, best first. Missing ones follow in their previous order; unknown ones are ignored."""


class Neighbours(Protocol):
    """Read access to the neighbour graph."""

    async def of(self, documents: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return each document's neighbours that the caller may read, nearest first, in one round trip."""

    def expect(self, documents: Sequence[int]) -> None:
        """Announce that :meth:`of` is likely to be called for these documents next, so that they can be read ahead."""


class StopReason(StrEnum):
    """The reason why a strategy ended."""

    BUDGET = "budget"
    COST = "cost"
    EXHAUSTED = "exhausted"
    FAILED = "failed"


class BudgetedReranker(ABC):
    """Sends documents to a reranker within a budget, and keeps the results. After a failure nothing more is sent."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.spent = 0
        self.failure: Exception | None = None

    @property
    def left(self) -> int:
        """Number of documents that may still be sent; 0 after a failure."""
        return 0 if self.failure else self._budget - self.spent

    @property
    @abstractmethod
    def judged(self) -> Sequence[int]:
        """Documents that the reranker has scored or ordered, in the order in which they were first sent."""

    @abstractmethod
    def score(self, document: int) -> float | None:
        """Return the reranker's score of a document; None if there is none."""

    @abstractmethod
    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Return the documents in the reranker's order, as far as the budget allows; the others keep their order."""


class StepLimit:
    """Limits the steps of a graph traversal from the first pass."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._steps: dict[int, int] = {}

    def within(self, documents: Sequence[int], neighbours: Sequence[list[int]]) -> list[list[int]]:
        """Return each document's neighbours, none for a document at the maximum number of steps."""
        for document, row in zip(documents, neighbours, strict=True):
            steps = self._steps.setdefault(document, 0) + 1
            for neighbour in row:
                self._steps[neighbour] = min(steps, self._steps.get(neighbour, steps))
        return [
            row if self._steps[document] < self._depth else []
            for document, row in zip(documents, neighbours, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RerankedList:
    """The result of a strategy."""

    # All documents that the strategy found, best first: the reranked ones, then those that the budget did not cover
    documents: Sequence[int]
    judged: int
    # Documents that count against the budget: distinct ones for a pointwise reranker, every one sent for a listwise one
    spent: int
    stopped: StopReason
    failure: Exception | None = None
    # For each document found through the graph, the document whose neighbour it is
    found_from: dict[int, int] = field(default_factory=dict)
    calls: Sequence[int] = ()  # the reranked documents, in the order in which they were first sent


def reranked_so_far(
    ranked: Sequence[int],
    first_pass: Sequence[int],
    reranker: BudgetedReranker,
    found_from: dict[int, int] | None = None,
) -> RerankedList:
    """Return the result for a ranking: reranked documents first, the others in first-pass order."""
    seen = set(reranker.judged)
    top = _by_score([document for document in ranked if document in seen], reranker)
    placed = set(top)
    tail = [document for document in (*first_pass, *ranked) if document not in placed]
    documents = [*top, *dict.fromkeys(tail)]
    stopped = StopReason.EXHAUSTED if len(top) == len(documents) else StopReason.BUDGET
    failure = reranker.failure
    if failure is not None:
        stopped, failure = (
            (StopReason.COST, None) if isinstance(failure, BudgetExhausted) else (StopReason.FAILED, failure)
        )
    return RerankedList(
        documents=documents,
        judged=len(top),
        spent=reranker.spent,
        stopped=stopped,
        failure=failure,
        found_from=found_from or {},
        calls=tuple(reranker.judged),
    )


def _by_score(documents: list[int], reranker: BudgetedReranker) -> list[int]:
    """Sort documents by the reranker's scores; without scores they keep their order."""
    scores = {document: reranker.score(document) for document in documents}
    return sorted(documents, key=lambda document: -(scores[document] or 0))

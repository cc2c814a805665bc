"""What the strategies work with: rerankers, neighbours, a judge that keeps the budget, and the walk that comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class PartialScores(Exception):
    """A reranker failed when it had scored some documents already.

    Args:
        scores: By position, of those that were asked for.
        cause: Why there are no more.
    """

    def __init__(self, scores: Mapping[int, float], cause: Exception) -> None:
        super().__init__(str(cause))
        self.scores = scores
        self.cause = cause


class BudgetExhausted(Exception):
    """What a search may cost is spent: the reranker is not asked again, and has not failed."""


@runtime_checkable
class PointwiseScorer(Protocol):
    """A reranker that scores each document by itself."""

    async def scores(self, documents: Sequence[int]) -> Sequence[float]:
        """Return one score a document, greater is better; whatever else comes back counts as a failure.

        Raises:
            Interrupted: It failed under way; the scores that it holds count.
            Spent: It may not be asked any more.
        """
        ...


@runtime_checkable
class ListwiseSorter(Protocol):
    """A reranker that puts a few documents in order."""

    async def order(self, documents: Sequence[int]) -> Sequence[int]:
        """Return the documents best first. What is missing keeps its order after the rest, what is odd is dropped.

        Raises:
            Spent: It may not be asked any more.
        """
        ...


class Neighbours(Protocol):
    """The neighbour graph, as the strategies read it."""

    async def of(self, documents: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return each document's neighbours, nearest first, in one round trip; those that may not be seen are absent.

        A document that the graph does not know has none.
        """
        ...

    def expect(self, documents: Sequence[int]) -> None:
        """Take note that :meth:`of` is likely to be asked of these next; it may read ahead, or do nothing."""
        ...


class StopReason(StrEnum):
    """Why a walk ended."""

    BUDGET = "budget"
    COST = "cost"
    EXHAUSTED = "exhausted"
    FAILED = "failed"


class BudgetedReranker(Protocol):
    """Shows documents to a reranker, never more than the budget allows, and keeps what it said.

    Attributes:
        left: Documents that may still be shown.
        spent: Documents that were paid for.
        judged: Documents that the reranker has seen, in the order of their first showing.
        failure: Why the reranker failed or may not be asked (:class:`BudgetExhausted`), or None; nothing more is shown
            then.
    """

    @property
    def left(self) -> int:
        """Documents that may still be shown; 0 after a failure."""
        ...

    @property
    def spent(self) -> int:
        """Documents that were paid for."""
        ...

    @property
    def judged(self) -> Sequence[int]:
        """Documents that the reranker has seen, in the order of their first showing."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why the reranker failed, or may not be asked any more."""
        ...

    def score(self, document: int) -> float | None:
        """Return a document's score where the reranker gives scores and has seen it."""
        ...

    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Return the documents in the reranker's order, as far as the budget reaches; the rest keeps its place."""
        ...


class Budget:
    """What may be spent on a reranker, what was, and whether it still answers: what every judge keeps.

    Args:
        budget: Documents that may be shown.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._spent = 0
        self._failure: Exception | None = None

    @property
    def left(self) -> int:
        """Documents that may still be shown; 0 after a failure."""
        return 0 if self._failure else self._budget - self._spent

    @property
    def spent(self) -> int:
        """Documents that were paid for."""
        return self._spent

    @property
    def failure(self) -> Exception | None:
        """Why the reranker failed, or may not be asked any more."""
        return self._failure

    def pay(self, documents: int) -> None:
        """Count documents that are about to be shown."""
        self._spent += documents

    def fail(self, failure: Exception) -> None:
        """Show nothing more."""
        self._failure = failure


@dataclass(frozen=True, slots=True)
class RerankedList:
    """What a strategy found.

    Attributes:
        documents: All documents that were met, best first: the judged ones, then those that no budget was left for.
        judged: How many of them the reranker has seen.
        spent: Documents paid for: distinct ones for a pointwise reranker, every one shown for a listwise one.
        stopped: Why it ended; exhausted where every document that could be met was judged.
        failure: Why the reranker failed, where it did.
        found_from: For each document that a neighbour led to, that neighbour.
        calls: The documents judged, in the order of their first showing.
    """

    documents: Sequence[int]
    judged: int
    spent: int
    stopped: StopReason
    failure: Exception | None = None
    found_from: dict[int, int] = field(default_factory=dict)
    calls: Sequence[int] = ()


def reranked_so_far(
    ranked: Sequence[int],
    first_pass: Sequence[int],
    judge: BudgetedReranker,
    found_from: dict[int, int] | None = None,
) -> RerankedList:
    """Return the walk that ends with a ranking: judged documents first, the rest in first-pass order.

    Args:
        ranked: Documents in the strategy's order; each once.
        first_pass: Documents of the first pass, which follow where they are not ranked.
        judge: What the budget went to.
        found_from: As in :class:`RerankedList`.
    """
    seen = set(judge.judged)
    top = _by_score([document for document in ranked if document in seen], judge)
    placed = set(top)
    tail = [document for document in (*first_pass, *ranked) if document not in placed]
    documents = [*top, *dict.fromkeys(tail)]
    stopped = StopReason.EXHAUSTED if len(top) == len(documents) else StopReason.BUDGET
    failure = judge.failure
    if failure is not None:
        stopped, failure = (
            (StopReason.COST, None) if isinstance(failure, BudgetExhausted) else (StopReason.FAILED, failure)
        )
    return RerankedList(
        documents=documents,
        judged=len(top),
        spent=judge.spent,
        stopped=stopped,
        failure=failure,
        found_from=found_from or {},
        calls=tuple(judge.judged),
    )


def _by_score(documents: list[int], judge: BudgetedReranker) -> list[int]:
    """Order documents by their scores, where the reranker gives any; else as they are."""
    scores = {document: judge.score(document) for document in documents}
    return sorted(documents, key=lambda document: -(scores[document] or 0))

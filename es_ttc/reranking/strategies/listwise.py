"""A judge over a reranker that orders a few documents at a time: a window slides over the list, from its end."""

from collections.abc import Sequence
from typing import Literal

from es_ttc.reranking.strategies.base import Budget, BudgetExhausted, ListwiseSorter

Count = Literal["shown", "distinct"]


class ListwiseBudgetedReranker(Budget):
    """Sorts documents by windows that overlap by half, from the back to the front.

    One pass brings the best w/2 documents to the front (Sun et al., RankGPT, EMNLP 2023); a pass ends early where a
    window has moved nothing into its front half, because what stands before it was in order already.

    Args:
        reranker: What orders documents.
        budget: Documents that may be shown.
        window: w, documents shown at once, at least 2. The step is w/2.
        count: Whether a document is paid for whenever it is shown, or once.
    """

    def __init__(self, reranker: ListwiseSorter, budget: int, window: int = 20, count: Count = "shown") -> None:
        super().__init__(budget)
        self._reranker = reranker
        self._window = window
        self._count = count
        self._judged: dict[int, None] = {}

    @property
    def window(self) -> int:
        """Documents shown at once."""
        return self._window

    @property
    def pays_repeats(self) -> bool:
        """Whether a document is paid for whenever it is shown."""
        return self._count == "shown"

    @property
    def judged(self) -> Sequence[int]:
        """Documents that the reranker has seen, in the order of their first showing."""
        return tuple(self._judged)

    def score(self, document: int) -> float | None:  # noqa: ARG002 - the protocol's
        """A listwise reranker gives no scores."""
        return None

    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Slide the window over the documents once, from the end, as far as the budget reaches."""
        ranked = list(documents)
        settled = self._settled(ranked)
        end = len(ranked)
        while end > 0:
            start = max(0, end - self._window)
            shown = ranked[start:end]
            ordered = await self.order(shown)
            if ordered is None:
                break
            ranked[start:end] = ordered
            moved = ordered[: len(ordered) // 2] != shown[: len(shown) // 2]
            if start == 0 or (not moved and start <= settled):
                break
            end = start + self._window // 2
        return ranked

    async def order(self, documents: Sequence[int]) -> list[int] | None:
        """Show one window; return it in the reranker's order, or None where nothing could be learned.

        Where the budget does not reach, the first documents that it does reach are shown, and the others follow them.
        """
        shown = self._affordable(documents)
        if len(shown) < min(2, len(documents)):
            return None
        self.pay(self._cost(shown))
        try:
            answer = await self._reranker.order(shown)
        except Exception as error:  # noqa: BLE001 - a failing reranker ends the walk, it does not break it
            self.fail(error)
            self.pay(-self._cost(shown) if isinstance(error, BudgetExhausted) else 0)
            return None
        self._judged.update(dict.fromkeys(shown))
        placed = set(shown)
        return [*repaired_order(answer, shown), *(document for document in documents if document not in placed)]

    def _affordable(self, documents: Sequence[int]) -> list[int]:
        if self.pays_repeats:
            return list(documents[: self.left])
        new = [document for document in documents if document not in self._judged]
        beyond = set(new[self.left :])
        return [document for document in documents if document not in beyond] if self.left else []

    def _cost(self, documents: Sequence[int]) -> int:
        if self.pays_repeats:
            return len(documents)
        return sum(document not in self._judged for document in documents)

    def _settled(self, documents: Sequence[int]) -> int:
        """Return how many documents at the front have been judged: nothing new stands among them."""
        for place, document in enumerate(documents):
            if document not in self._judged:
                return place
        return len(documents)


def repaired_order(answer: Sequence[int], documents: Sequence[int]) -> list[int]:
    """Return an order of the documents that follows the answer as far as it makes sense.

    Repeated and foreign ones in the answer are passed over; those that it lacks follow in the order they had.
    """
    asked = set(documents)
    named = [document for document in dict.fromkeys(answer) if document in asked]
    placed = set(named)
    return [*named, *(document for document in documents if document not in placed)]

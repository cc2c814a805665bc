"""A budgeted reranker over a listwise reranker: a window slides over the list, from the end to the front."""

from collections.abc import Sequence
from typing import Literal

from es_ttc.reranking.strategies.base import BudgetedReranker, BudgetExhausted, ListwiseSorter

Count = Literal["shown", "distinct"]


class ListwiseBudgetedReranker(BudgetedReranker):
    """Sorts documents by windows of w documents that overlap by half, from the back to the front.

    One pass moves the best w/2 documents to the front (Sun et al., RankGPT, EMNLP 2023). A pass ends early if a window
    has moved nothing into its front half, because the documents before it were in order already.
    """

    def __init__(self, reranker: ListwiseSorter, budget: int, window: int = 20, count: Count = "shown") -> None:
        super().__init__(budget)
        self.window = window
        self.pays_repeats = count == "shown"
        self._reranker = reranker
        self._judged: dict[int, None] = {}

    @property
    def judged(self) -> Sequence[int]:
        """Documents that the reranker has ordered, in the order in which they were first sent."""
        return tuple(self._judged)

    def score(self, document: int) -> float | None:  # noqa: ARG002 - the protocol's
        """Return None: a listwise reranker returns no scores."""
        return None

    async def sort(self, documents: Sequence[int]) -> list[int]:
        """Slide the window over the documents once, from the end, as far as the budget allows."""
        ranked = list(documents)
        settled = self._settled(ranked)
        end = len(ranked)
        while end > 0:
            start = max(0, end - self.window)
            sent = ranked[start:end]
            ordered = await self.order(sent)
            if ordered is None:
                break
            ranked[start:end] = ordered
            moved = ordered[: len(ordered) // 2] != sent[: len(sent) // 2]
            if start == 0 or (not moved and start <= settled):
                break
            end = start + self.window // 2
        return ranked

    async def order(self, documents: Sequence[int]) -> list[int] | None:
        """Send one window, cut to the budget; return it in the reranker's order, or None if it could not be ordered."""
        sent = self._affordable(documents)
        if len(sent) < min(2, len(documents)):
            return None
        self.spent += self._cost(sent)
        try:
            answer = await self._reranker.order(sent)
        except Exception as error:  # noqa: BLE001 - a failing reranker ends the search without an error
            self.failure = error
            self.spent -= self._cost(sent) if isinstance(error, BudgetExhausted) else 0
            return None
        self._judged.update(dict.fromkeys(sent))
        placed = set(sent)
        return [*repaired_order(answer, sent), *(document for document in documents if document not in placed)]

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
        """Return the number of leading documents that the reranker has already ordered."""
        for place, document in enumerate(documents):
            if document not in self._judged:
                return place
        return len(documents)


def repaired_order(answer: Sequence[int], documents: Sequence[int]) -> list[int]:
    """Return documents in an answer's order: repeated and unknown ones skipped, missing ones last, as they were."""
    requested = set(documents)
    named = [document for document in dict.fromkeys(answer) if document in requested]
    placed = set(named)
    return [*named, *(document for document in documents if document not in placed)]

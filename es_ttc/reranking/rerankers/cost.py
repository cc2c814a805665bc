"""The cost of rerankers: they report the use of each answer, and a limit holds for all calls of one search.

A reranker calls :func:`tell` when an answer has arrived; the code that runs a search creates a :class:`Cost` for it.
Cancelled calls have a cost too, but it is unknown and not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from es_ttc.reranking.strategies.base import BudgetExhausted


@dataclass(slots=True)
class Cost:
    """The cost of one search so far."""

    most_tokens: int | None = None
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    search_units: int = 0

    @property
    def tokens(self) -> int:
        """The number of all tokens."""
        return self.prompt_tokens + self.completion_tokens

    def as_dict(self) -> dict[str, int]:
        """Return the reported values, for the response."""
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "search_units": self.search_units,
        }
        return {"calls": self.calls, **{name: count for name, count in counts.items() if count}}


_ACCOUNT: ContextVar[Cost | None] = ContextVar("es_ttc_reranker_cost", default=None)


@contextmanager
def charged_to(cost: Cost) -> Iterator[Cost]:
    """Add the reported use of rerankers to a cost, also from tasks that are created in the body."""
    token = _ACCOUNT.set(cost)
    try:
        yield cost
    finally:
        _ACCOUNT.reset(token)


def tell(*, prompt_tokens: int = 0, completion_tokens: int = 0, search_units: int = 0) -> None:
    """Report the use of one answer."""
    cost = _ACCOUNT.get()
    if cost is not None:
        cost.prompt_tokens += prompt_tokens
        cost.completion_tokens += completion_tokens
        cost.search_units += search_units


def count_call() -> None:
    """Count a call before it is made."""
    cost = _ACCOUNT.get()
    if cost is None:
        return
    if cost.most_tokens is not None and cost.tokens >= cost.most_tokens:
        raise BudgetExhausted(f"{cost.tokens} tokens of {cost.most_tokens} (max_tokens) are spent")
    cost.calls += 1

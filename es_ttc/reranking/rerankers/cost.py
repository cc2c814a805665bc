"""What rerankers cost: each tells what an answer took, and a bound holds for all calls of one search.

A reranker calls :func:`tell` when an answer has come, wherever it stands; whoever runs a search opens an account for
it. Calls that were given up have cost something too, but nobody says how much.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from es_ttc.reranking.strategies.base import BudgetExhausted


@dataclass(slots=True)
class Cost:
    """What one search has cost so far.

    Attributes:
        most_tokens: Once so many have been taken, nothing more is asked; None for no bound.
        calls: Calls of the reranker.
        prompt_tokens: Read by the reranker, where it says so.
        completion_tokens: Written by it.
        search_units: What Cohere bills by.
    """

    most_tokens: int | None = None
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    search_units: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return self.prompt_tokens + self.completion_tokens

    def as_dict(self) -> dict[str, int]:
        """Return what is shown: what the reranker says nothing of is left out."""
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "search_units": self.search_units,
        }
        return {"calls": self.calls, **{name: count for name, count in counts.items() if count}}


_ACCOUNT: ContextVar[Cost | None] = ContextVar("es_ttc_reranker_cost", default=None)


@contextmanager
def charged_to(cost: Cost) -> Iterator[Cost]:
    """Charge what rerankers tell to an account; tasks that are made meanwhile are charged to it as well."""
    token = _ACCOUNT.set(cost)
    try:
        yield cost
    finally:
        _ACCOUNT.reset(token)


def tell(*, prompt_tokens: int = 0, completion_tokens: int = 0, search_units: int = 0) -> None:
    """Say what an answer took."""
    cost = _ACCOUNT.get()
    if cost is not None:
        cost.prompt_tokens += prompt_tokens
        cost.completion_tokens += completion_tokens
        cost.search_units += search_units


def count_call() -> None:
    """Count a call that is about to be made.

    Raises:
        Spent: The search has no tokens left for it. Calls under way beside it are not stopped.
    """
    cost = _ACCOUNT.get()
    if cost is None:
        return
    if cost.most_tokens is not None and cost.tokens >= cost.most_tokens:
        raise BudgetExhausted(f"{cost.tokens} tokens of {cost.most_tokens} (max_tokens) are spent")
    cost.calls += 1

"""The interface of a rescoring: one item with a section, or several that run in order."""

from collections.abc import Sequence
from typing import Protocol

from es_ttc.serving.features.scores import Method
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.response import RescoredResponse
from es_ttc.serving.search.stage import Answered


class Rescoring(Protocol):
    """The rescoring of one search."""

    @property
    def reads_bare_hits(self) -> bool:
        """Whether hits with only content hashes can be ranked."""
        ...

    @property
    def plan(self) -> SearchPlan:
        """The parsed search, with the fields of hits that the method reads."""
        ...

    @property
    def items(self) -> "Sequence[Rescoring]":
        """The rescorings of the list's items, in order."""
        ...

    @property
    def method(self) -> Method | None:
        """The method that scores documents; None for a reranker of the settings."""
        ...

    async def rank(self, answered: Answered, spent: float | None = None) -> RescoredResponse:
        """Put the engine's response in the method's order, in place.

        Args:
            answered: The response.
            spent: The part of the time budget that earlier items of the list have used, in ms; None for the first one.
        """
        ...

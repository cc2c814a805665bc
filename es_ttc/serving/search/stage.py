"""The interface of a stage: change a search before the engine answers it, and complete its response afterwards.

A stage whose sections are in clauses of the body (`query`, `knn`) finds them, answers them and replaces them by native
queries.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from es_ttc.errors import EsTtcError
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.pool import Offload
from es_ttc.serving.search.engine import EngineRefusal, EngineSearches, ItemRefusal
from es_ttc.serving.search.request import SearchItem, SearchRequest

C = TypeVar("C")
A = TypeVar("A")


class Stage(Protocol):
    """One step of the pipeline: rewrite queries, retrieve by kNN, or rescore windows."""

    async def before(self, request: SearchRequest) -> None:
        """Process the stage's sections in the request's searches.

        A search with a section of the stage gets a new body and a completion, or an error if it cannot be answered.
        Other searches are not changed.

        Raises:
            EsTtcError: The whole request cannot be answered.
        """
        ...


@dataclass(slots=True)
class Answered:
    """A search that the engine has answered.

    Attributes:
        request: The request.
        item: The search.
        response: Its decoded response; completions change it in place, or replace it.
        ms: Time of the engine's answer, in milliseconds.
        engine: Sends further requests with the caller's credentials.
        refusal: The engine's refusal of the search as a stage has changed it; then there is no response yet.
        attempt_ms: Time of an earlier ranking of this search, which is repeated over complete hits; None for the first.
    """

    request: SearchRequest
    item: SearchItem
    response: dict[str, Any]
    ms: float
    engine: EngineSearches
    refusal: EngineRefusal | ItemRefusal | None = None
    attempt_ms: float | None = None

    @property
    def caller(self) -> Caller:
        """The request context with which documents are read."""
        return self.request.caller(self.item)

    async def again(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the engine's response to another body of the search; see :meth:`EngineSearches.again`."""
        return await self.engine.again(self.request, self.item, body)


class Completion(ABC):
    """The part of a stage that runs when the engine has answered a search.

    Attributes:
        applied: Whether the method was applied; if not, the ranking is the engine's own.
        reported: Whether the response contains a summary of it.
    """

    applied: bool = True
    reported: bool = True

    @abstractmethod
    async def complete(self, answered: Answered) -> None:
        """Complete the response of one search.

        Raises:
            EngineRefusal: The engine refused a further request; the caller gets the engine's error.
            EsTtcError: The search cannot be answered.
        """


@dataclass(frozen=True, slots=True)
class SearchWithClauses(Generic[C]):
    """A search with clauses of a stage.

    Attributes:
        item: The search.
        body: Its body.
        clauses: The clauses; one or more.
    """

    item: SearchItem
    body: dict[str, Any]
    clauses: Sequence[C]


class ClauseStage(ABC, Generic[C, A]):
    """A stage that replaces the clauses of one kind by native queries.

    If a clause of an `_msearch` cannot be answered, only its search becomes an error.

    Args:
        offload: Runs the parsing of long bodies.
    """

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    @abstractmethod
    def clauses_of(self, body: Mapping[str, Any]) -> list[C]:
        """Return the stage's clauses in a body.

        Raises:
            InvalidRequest: One is invalid.
        """

    @abstractmethod
    async def answers(
        self, request: SearchRequest, found: Sequence[SearchWithClauses[C]]
    ) -> list[list[A] | EsTtcError]:
        """Return for each search the answers to its clauses, or its error."""

    @abstractmethod
    def replaced(self, body: dict[str, Any], answers: Sequence[A]) -> dict[str, Any]:
        """Return the body with native queries in place of the clauses."""

    @abstractmethod
    def completion(self, answers: Sequence[A]) -> Completion:
        """Return the completion that adds the summaries of the clauses to the response."""

    async def before(self, request: SearchRequest) -> None:
        """Answer and replace the stage's clauses in all searches of a request."""
        found, errors = await self._offload.run(request.size, self._find, request)
        for item, error in errors:
            item.error = error
        if not found and not (errors and request.is_multi):
            return
        request.require_json()
        for one, answers in zip(found, await self.answers(request, found), strict=True):
            if isinstance(answers, EsTtcError):
                one.item.error = answers
            else:
                one.item.body = self.replaced(one.body, answers)
                one.item.completions.append(self.completion(answers))

    def _find(self, request: SearchRequest) -> tuple[list[SearchWithClauses[C]], list[tuple[SearchItem, EsTtcError]]]:
        found: list[SearchWithClauses[C]] = []
        errors: list[tuple[SearchItem, EsTtcError]] = []
        for item, body in request.open_items():
            try:
                clauses = self.clauses_of(body)
            except EsTtcError as error:
                errors.append((item, error))
            else:
                found += [SearchWithClauses(item, body, clauses)] if clauses else []
        return found, errors


class ClauseCompletion(Completion, Generic[A]):
    """Adds the summaries of clauses to a response.

    Args:
        answers: The answers to the clauses.
    """

    def __init__(self, answers: Sequence[A]) -> None:
        self.answers = answers

    @abstractmethod
    def add(self, response: dict[str, Any]) -> None:
        """Add the summaries to a response, in place."""

    async def complete(self, answered: Answered) -> None:
        """Complete the response of one search."""
        self.add(answered.response)

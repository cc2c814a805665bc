"""Stages whose sections stand in clauses of a search's body: found, answered, and replaced by native queries."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from es_ttc.errors import EsTtcError
from es_ttc.serving.offload import Offload
from es_ttc.serving.rescore.plan import find_rescore
from es_ttc.serving.search.query_text import texts_of
from es_ttc.serving.search.request import SearchItem, SearchRequest
from es_ttc.serving.search.section import KEY
from es_ttc.serving.search.stage import Answered, Completion

C = TypeVar("C")
A = TypeVar("A")

_TEXT = "query_text"


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
    """Answers the clauses of one kind and puts native queries in their places.

    In an `_msearch` each search stands for itself: one whose clause cannot be answered becomes an error.

    Args:
        offload: Where long bodies are searched for clauses.
    """

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    @abstractmethod
    def clauses_of(self, body: Mapping[str, Any]) -> list[C]:
        """Return the stage's clauses in a body.

        Raises:
            InvalidRequest: One cannot be meant as it stands.
        """

    @abstractmethod
    async def answers(
        self, request: SearchRequest, found: Sequence[SearchWithClauses[C]]
    ) -> list[list[A] | EsTtcError]:
        """Return for each of some searches the answers to its clauses, or why there are none."""

    @abstractmethod
    def replaced(self, body: dict[str, Any], answers: Sequence[A]) -> dict[str, Any]:
        """Return the body with native queries in the places of the clauses."""

    @abstractmethod
    def completion(self, answers: Sequence[A]) -> Completion:
        """Return what adds to the response what there is to say about the clauses."""

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
    """Adds to a response what there is to say about clauses.

    Args:
        answers: The answers to the clauses.
    """

    def __init__(self, answers: Sequence[A]) -> None:
        self.answers = answers

    @abstractmethod
    def add(self, response: dict[str, Any]) -> None:
        """Add to a response in place."""

    async def complete(self, answered: Answered) -> None:
        """Complete the response of one search."""
        self.add(answered.response)


def with_text(replaced: dict[str, Any], body: Mapping[str, Any], texts: set[tuple[str, ...]]) -> dict[str, Any]:
    """Return a body whose rescoring section has the text of the clauses, where it has none of its own.

    Args:
        replaced: The body with native queries in the clauses' places.
        body: The body as it came.
        texts: The texts of the clauses.
    """
    rescore = find_rescore(body.get("rescore"))
    if rescore is None or len(texts) != 1 or any(texts_of(body.get("query"))):
        return replaced
    section = rescore[1][KEY]
    [several] = texts
    if not several or not isinstance(section, dict) or section.keys() & {_TEXT, "query_texts"}:
        return replaced
    text = {_TEXT: several[0]} if len(several) == 1 else {"query_texts": list(several)}
    return {**replaced, "rescore": [*rescore[0], {**rescore[1], KEY: {**section, **text}}]}

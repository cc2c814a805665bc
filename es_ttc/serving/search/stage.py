"""The interface of everything that we do to a search: change it before the engine answers, complete it after."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from es_ttc.serving.http.caller import Caller
from es_ttc.serving.search.engine import EngineSearches
from es_ttc.serving.search.request import SearchItem, SearchRequest


class Stage(Protocol):
    """One thing that is done to searches: a query rewritten, documents retrieved by kNN, a window rescored."""

    async def before(self, request: SearchRequest) -> None:
        """Take what belongs to this stage out of the request's searches.

        A search that has something of the stage gets another body and a completion; one that cannot be answered gets
        an error. All others stay as they are.

        Raises:
            EsTtcError: The request as a whole cannot be answered.
        """
        ...


@dataclass(slots=True)
class Answered:
    """A search that the engine has answered.

    Attributes:
        request: The request.
        item: The search.
        response: Its decoded response; completions change it in place, or put another in its place.
        ms: How long the engine took, in milliseconds.
        engine: Answers further requests in the caller's name.
    """

    request: SearchRequest
    item: SearchItem
    response: dict[str, Any]
    ms: float
    engine: EngineSearches

    @property
    def caller(self) -> Caller:
        """In whose name documents are read."""
        return self.request.caller(self.item)

    async def again(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the engine's response to another body of the search; see :meth:`EngineSearches.again`."""
        return await self.engine.again(self.request, self.item, body)


class Completion(ABC):
    """What a stage has left to do to a search once the engine has answered it.

    Attributes:
        applied: Whether the method did its work; where it did not, the engine's own ranking stands.
        reported: Whether the response tells of it.
    """

    applied: bool = True
    reported: bool = True

    @abstractmethod
    async def complete(self, answered: Answered) -> None:
        """Complete the response of one search.

        Raises:
            EngineRefusal: The engine refused a further request; the caller gets the engine's words.
            EsTtcError: The search cannot be answered.
        """

"""Values of a rescored search: the request for candidates, the candidates that joined, and the result."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.keys import identity_mark
from es_ttc.serving.features.scores import Method
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.rescore.collapse import WindowGroups
from es_ttc.serving.rescore.plan import SearchPlan


@dataclass(frozen=True, slots=True)
class CandidateRequest:
    """A request for candidates."""

    request: SearchRequest
    item: SearchItem
    plan: SearchPlan
    count: int
    method: Method
    begun: asyncio.Task[EncodedQuery] | None


@dataclass(frozen=True, slots=True)
class JoinedCandidates:
    """The candidates of a window.

    Attributes:
        hits: Hits of documents that are not in the window, nearest first, with `_score` 0 and their content hash, and
            with an `_id` if `named`.
        requested: Number of requested documents.
        named: Whether documents are identified by their ids.
        filters: Queries that each of them matches, apart from the query's text.
        reason: Why there are none; None if the search succeeded.
    """

    hits: Sequence[dict[str, Any]] = ()
    requested: int = 0
    named: bool = False
    filters: Sequence[Any] = ()
    reason: str | None = None

    def among(self, page: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the candidates' hits among those of a page."""
        joined = {id(hit) for hit in self.hits}
        return [hit for hit in page if id(hit) in joined]

    def places_left(self, hits: Sequence[Mapping[str, Any]], start: int) -> list[int]:
        """Return the places of those hits of the first pass from ``start`` on that are not candidates."""
        if start >= len(hits):
            return []
        joined = Counter(identity_mark(hit, named=self.named) for hit in self.hits)
        left = []
        for place in range(start, len(hits)):
            mark = identity_mark(hits[place], named=self.named)
            if joined[mark]:
                joined[mark] -= 1
            else:
                left.append(place)
        return left

    def as_dict(self) -> dict[str, Any]:
        """Return their part of the summary."""
        summary: dict[str, Any] = {"knn": self.requested, "joined": len(self.hits)}
        return summary if self.reason is None else {**summary, "reason": self.reason}


NONE_JOINED = JoinedCandidates()


@dataclass(frozen=True, slots=True)
class RescoredResponse:
    """What is known of a response after its hits have been put in order.

    Attributes:
        applied: Whether the order is the method's.
        groups: The groups of the ranked documents, if the request collapses.
        joined: The candidates that joined the window; their hits on the page still lack their fields.
        rest: Runs the items that need complete hits, once the response's hits are complete; None if there are none.
    """

    applied: bool
    groups: WindowGroups | None = None
    joined: JoinedCandidates = NONE_JOINED
    rest: "Callable[[], Awaitable[RescoredResponse]] | None" = None

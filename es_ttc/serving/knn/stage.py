"""The stage of the `knn` hook: each clause is replaced by a native query for the documents that were retrieved.

The engine does the rest of the search: `_source`, highlighting, aggregations, sorting, pages and explanations work on
these documents and their scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from es_ttc.errors import EsTtcError
from es_ttc.serving.http.limits import RequestLimits
from es_ttc.serving.knn.clauses import KnnClause, RetrievalRequest, RetrievalResult, clauses_of, put_in_place
from es_ttc.serving.pool import Offload
from es_ttc.serving.rescore.plan import DEFAULT_SIZE, own_timeout, with_text
from es_ttc.serving.search.accepted_callers import AcceptedCallers
from es_ttc.serving.search.request import SearchRequest
from es_ttc.serving.search.response import add_summary
from es_ttc.serving.search.stage import ClauseCompletion, ClauseStage, SearchWithClauses
from es_ttc.serving.search.values import body_integer, url_integer


class Retrieval(Protocol):
    """Retrieves documents; see :class:`es_ttc.serving.knn.retrieval.RetrievalService`."""

    async def retrieve(
        self, requests: Sequence[RetrievalRequest], path: bytes, query_string: bytes
    ) -> list[RetrievalResult | EsTtcError]:
        """Return the result of each clause of one request, or its error."""
        ...


class KnnStage(ClauseStage[KnnClause, RetrievalResult]):
    """Replaces kNN clauses.

    Args:
        retrieval: Retrieves documents.
        accepted: The callers and targets that the engine has answered recently.
        limits: Limits of requests.
        offload: Runs the parsing of long bodies.
        max_window: Maximum ``k`` of a clause with a section.
    """

    def __init__(
        self,
        retrieval: Retrieval,
        accepted: AcceptedCallers,
        limits: RequestLimits,
        offload: Offload,
        *,
        max_window: int,
    ) -> None:
        super().__init__(offload)
        self._retrieval = retrieval
        self._accepted = accepted
        self._limits = limits
        self._max_window = max_window

    def clauses_of(self, body: Mapping[str, Any]) -> list[KnnClause]:
        """Return the kNN clauses in a body that the gateway answers."""
        return clauses_of(body, max_k=self._max_window, limits=self._limits)

    async def answers(
        self, request: SearchRequest, found: Sequence[SearchWithClauses[KnnClause]]
    ) -> list[list[RetrievalResult] | EsTtcError]:
        """Return the results of the clauses; the searches of all retrievals are sent in batches."""
        path, query_string = request.msearch_target()
        requests = [self._request(request, one, clause) for one in found for clause in one.clauses]
        results = iter(await self._retrieval.retrieve(requests, path, query_string))
        return [_results_or_error([next(results) for _ in one.clauses]) for one in found]

    def replaced(self, body: dict[str, Any], answers: Sequence[RetrievalResult]) -> dict[str, Any]:
        """Return the body with native queries in place of clauses, and their text in a rescoring section."""
        replaced = put_in_place(body, [(one.clause, one.query) for one in answers])
        return with_text(replaced, body, {one.clause.texts for one in answers})

    def completion(self, answers: Sequence[RetrievalResult]) -> "KnnCompletion":
        """Return the object that adds the summaries of the retrievals."""
        return KnnCompletion(answers)

    def _request(
        self, request: SearchRequest, found: SearchWithClauses[KnnClause], clause: KnnClause
    ) -> RetrievalRequest:
        url = request.params.url
        size = url_integer(url["size"]) if "size" in url else body_integer(found.body.get("size", DEFAULT_SIZE))
        return RetrievalRequest(
            clause,
            found.body,
            DEFAULT_SIZE if size is None or size < 0 else size,  # the engine returns the error of an invalid size
            request.caller(found.item),
            request.msearch_header(found.item),
            own_timeout(found.body, url),
            request.started,
            (request.incoming.headers, request.target(found.item)) in self._accepted,
        )


class KnnCompletion(ClauseCompletion[RetrievalResult]):
    """Adds the summaries of retrievals, and their details of the page's documents."""

    def __init__(self, answers: Sequence[RetrievalResult]) -> None:
        super().__init__(answers)
        self.applied = all(one.applied for one in answers)
        self.reported = any(one.summary is not None for one in answers)

    def add(self, response: dict[str, Any]) -> None:
        """Add them to a response, in place."""
        summaries = [one.summary for one in self.answers if one.summary is not None]
        if not summaries:
            return
        ms = sum(one["took"]["encode"] + one["took"]["search"] for one in summaries)
        add_summary(response, "knn", summaries, ms)
        for hit in response.get("hits", {}).get("hits", ()):
            identity = (hit.get("_index", ""), hit.get("_id", ""))
            found = next((one.details[identity] for one in self.answers if identity in one.details), None)
            if found is not None:
                hit["_ttc"] = {**hit["_ttc"], "knn": found} if "_ttc" in hit else found


def _results_or_error(results: Sequence[RetrievalResult | EsTtcError]) -> list[RetrievalResult] | EsTtcError:
    """Return the results of a search's clauses, or the first of their errors."""
    error = next((one for one in results if isinstance(one, EsTtcError)), None)
    return error or [one for one in results if isinstance(one, RetrievalResult)]

"""The stage of `ttc` queries: each is rewritten to one native query, and the rest of the search does not change."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from es_ttc.errors import EsTtcError
from es_ttc.serving.http.limits import RequestLimits
from es_ttc.serving.knn.clauses import put_at
from es_ttc.serving.pool import Offload
from es_ttc.serving.query.clauses import QueryClause, clauses_of
from es_ttc.serving.query.rewriting import RewriteRequest, RewriteResult, RewriteService, show_matches
from es_ttc.serving.rescore.plan import own_timeout, with_text
from es_ttc.serving.search.request import SearchRequest
from es_ttc.serving.search.response import add_summary
from es_ttc.serving.search.stage import ClauseCompletion, ClauseStage, SearchWithClauses

_REWRITTEN_AT_ONCE = 8  # searches of one `_msearch`


class RewriteStage(ClauseStage[QueryClause, RewriteResult]):
    """Rewrites `ttc` queries.

    Args:
        rewriting: Rewrites one query.
        limits: Limits of requests.
        offload: Runs the parsing of long bodies.
    """

    def __init__(self, rewriting: RewriteService, limits: RequestLimits, offload: Offload) -> None:
        super().__init__(offload)
        self._rewriting = rewriting
        self._limits = limits

    def clauses_of(self, body: Mapping[str, Any]) -> list[QueryClause]:
        """Return the `ttc` queries in a body."""
        return clauses_of(body, limits=self._limits)

    async def answers(
        self, request: SearchRequest, found: Sequence[SearchWithClauses[QueryClause]]
    ) -> list[list[RewriteResult] | EsTtcError]:
        """Return the rewritten queries, for a few searches at a time."""
        room = asyncio.Semaphore(_REWRITTEN_AT_ONCE)

        async def rewritten(one: SearchWithClauses[QueryClause]) -> list[RewriteResult] | EsTtcError:
            caller = request.caller(one.item)
            shards = request.shard_params(one.item)
            timeout_ms = own_timeout(one.body, request.params.url)
            questions = [
                RewriteRequest(clause, one.body, caller, shards, timeout_ms, request.started) for clause in one.clauses
            ]
            async with room:
                try:
                    return list(await asyncio.gather(*map(self._rewriting.rewritten, questions)))
                except EsTtcError as error:
                    return error

        return list(await asyncio.gather(*map(rewritten, found)))

    def replaced(self, body: dict[str, Any], answers: Sequence[RewriteResult]) -> dict[str, Any]:
        """Return the body with native queries in place of `ttc` queries, and their text in a rescoring section."""
        replaced = body
        for one in answers:
            replaced = put_at(replaced, one.clause.place, one.query)
        return with_text(replaced, body, {(one.clause.text,) for one in answers})

    def completion(self, answers: Sequence[RewriteResult]) -> "RewriteCompletion":
        """Return the object that adds the summaries of the rewriting."""
        return RewriteCompletion(answers)


class RewriteCompletion(ClauseCompletion[RewriteResult]):
    """Adds the summaries of rewritten queries."""

    def __init__(self, answers: Sequence[RewriteResult]) -> None:
        super().__init__(answers)
        self.applied = all(one.applied for one in answers)

    def add(self, response: dict[str, Any]) -> None:
        """Add them to a response, in place."""
        add_summary(response, "query", [one.summary for one in self.answers], max(one.ms for one in self.answers))
        if any(one.detail for one in self.answers):
            show_matches(response.get("hits", {}).get("hits", []))

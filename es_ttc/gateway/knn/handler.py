"""Requests with kNN clauses of ours: the clauses are answered and replaced, and the rest goes its usual way.

What is left is a search like any other: it is passed through, or rescored by a section of ours in ``rescore``. The
engine's answer then gets what there is to say about the retrieval. Everything beside the clause is the engine's own:
`_source`, highlighting, aggregations, sorting, pages and explanations see native queries that match the documents
found, with their scores.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Send

from es_ttc.errors import EsTtcError
from es_ttc.gateway import jsonio
from es_ttc.gateway.captured import add_summary, with_text
from es_ttc.gateway.hook import Found, HookHandler, Params
from es_ttc.gateway.incoming import Incoming
from es_ttc.gateway.knn.clauses import Clause, clauses_of, put_in_place
from es_ttc.gateway.knn.retrieving import Question, Replacement, Retrieving
from es_ttc.gateway.limits import MARKS
from es_ttc.gateway.search import Outcome, SearchHandler, caller_of, without_template
from es_ttc.gateway.search_body import DEFAULT_SIZE, own_timeout

_OF_THE_DOOR = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_unavailable", "preference", "routing", "search_type",
)  # fmt: skip


class KnnHandler(HookHandler[Clause, Replacement]):
    """Answers searches with kNN clauses of ours, and hands all others on.

    Args:
        searches: Answers what is left of a search.
        retrieving: Answers kNN clauses.
        max_window: Greatest ``k`` of a retrieval of ours.
    """

    marks = MARKS

    def __init__(self, searches: SearchHandler, retrieving: Retrieving, *, max_window: int) -> None:
        super().__init__(searches, searches)
        self._retrieving = retrieving
        self._max_window = max_window

    async def template(self, incoming: Incoming, send: Send, rendered: dict[str, Any] | None) -> Outcome:
        """Answer one `_search/template` by what it renders to; see :meth:`SearchHandler.template`."""
        started = time.perf_counter()
        _, _, params = await self._searches.read(incoming)
        clauses = [] if rendered is None else self.clauses_of(rendered)
        if rendered is None or not clauses:
            return await self._searches.template(incoming, send, rendered)
        incoming.target = incoming.raw_path = without_template(incoming.raw_path)
        return await self.answer(incoming, send, Found(rendered, clauses), params, started)

    def clauses_of(self, body: Mapping[str, Any]) -> list[Clause]:
        """Return the kNN clauses of ours in a body."""
        return clauses_of(body, most=self._max_window, limits=self._searches.limits)

    async def answers(
        self, incoming: Incoming, asked: Sequence[Found[Clause]], params: Params, started: float
    ) -> list[list[Replacement] | EsTtcError]:
        """Return what stands in the clauses' places; the rounds of all retrievals go in step."""
        if incoming.target.rstrip(b"/").endswith(b"_msearch"):
            path, query_string = incoming.target, _query_string(params)
            doors = [found.header for found in asked]
        else:
            path, query_string = incoming.target.rstrip(b"/").removesuffix(b"_search") + b"_msearch", b""
            doors = [jsonio.dumps({name: value for name, value in params if name in _OF_THE_DOOR})]
        questions = [
            _question(incoming, found.header, door, clause, found.body, params, started)
            for found, door in zip(asked, doors, strict=True)
            for clause in found.clauses
        ]
        answered = iter(await self._retrieving.answer(questions, path, query_string))
        outcomes = [[next(answered) for _ in found.clauses] for found in asked]
        return [_whole(several) for several in outcomes]

    def changed(self, body: dict[str, Any], answers: Sequence[Replacement]) -> dict[str, Any]:
        """Put native queries in the clauses' places, and tell the text to a rescorer of ours."""
        changed = put_in_place(body, [(one.clause, one.query) for one in answers])
        return with_text(changed, body, {one.clause.texts for one in answers})

    def add(self, answer: dict[str, Any], answers: Sequence[Replacement], filter_path: str) -> None:
        """Add what there is to say: beside what a rescoring of ours has said, below ``knn``."""
        summaries = [one.summary for one in answers if one.summary is not None]
        if not summaries:
            return
        ms = sum(one["took"]["encode"] + one["took"]["search"] for one in summaries)
        add_summary(answer, "knn", summaries, ms, filter_path)
        for hit in answer.get("hits", {}).get("hits", ()):
            identity = (hit.get("_index", ""), hit.get("_id", ""))
            found = next((one.details[identity] for one in answers if identity in one.details), None)
            if found is not None:
                hit["_ttc"] = {**hit["_ttc"], "knn": found} if "_ttc" in hit else found

    def applied(self, answer: Replacement) -> bool:
        """Whether the method's own retrieval stands there, if one was asked for."""
        return answer.applied

    def told(self, answer: Replacement) -> bool:
        """Whether more than a text was encoded."""
        return answer.summary is not None


def _whole(outcomes: Sequence[Replacement | EsTtcError]) -> list[Replacement] | EsTtcError:
    """Return the answers to a search's clauses, or the first of their errors."""
    fault = next((one for one in outcomes if isinstance(one, EsTtcError)), None)
    return fault or [one for one in outcomes if isinstance(one, Replacement)]


def _question(
    incoming: Incoming,
    header: bytes,
    door: bytes,
    clause: Clause,
    body: Mapping[str, Any],
    params: Params,
    started: float,
) -> Question:
    url = dict(params)
    size = url.get("size", body.get("size", DEFAULT_SIZE))
    wanted = int(size) if str(size).isdigit() else DEFAULT_SIZE  # the engine will say what is wrong with it
    return Question(clause, body, wanted, caller_of(incoming, body, header), door, own_timeout(body, url), started)


def _query_string(params: Params) -> bytes:
    return b"".join(b"search_type=" + value.encode() for name, value in params if name == "search_type")

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
from es_ttc.gateway.captured import NOTHING, Captured, add_summary, is_refusal, refused, with_text
from es_ttc.gateway.incoming import Incoming
from es_ttc.gateway.knn.clauses import MARKS, Clause, clauses_of, put_in_place
from es_ttc.gateway.knn.retrieving import Question, Replacement, Retrieving
from es_ttc.gateway.search import (
    Outcome,
    SearchHandler,
    caller_of,
    items_of,
    require_json_answer,
    without_template,
)
from es_ttc.gateway.search_body import DEFAULT_SIZE, own_timeout

_OF_THE_DOOR = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_unavailable", "preference", "routing", "search_type",
)  # fmt: skip


class KnnHandler:
    """Answers searches with kNN clauses of ours, and hands all others on.

    Args:
        searches: Answers what is left of a search.
        retrieving: Answers kNN clauses.
        max_window: Greatest ``k`` of a retrieval of ours.
    """

    def __init__(self, searches: SearchHandler, retrieving: Retrieving, *, max_window: int) -> None:
        self._searches = searches
        self._retrieving = retrieving
        self._max_window = max_window

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        found = self._clauses(text)
        if found is None:
            return await self._searches.search(incoming, send)
        return await self._answer(incoming, send, *found, params, started)

    async def template(self, incoming: Incoming, send: Send, rendered: dict[str, Any] | None) -> Outcome:
        """Answer one `_search/template` by what it renders to; see :meth:`SearchHandler.template`."""
        started = time.perf_counter()
        _, _, params = await self._searches.read(incoming)
        clauses = [] if rendered is None else clauses_of(rendered, most=self._max_window)
        if rendered is None or not clauses:
            return await self._searches.template(incoming, send, rendered)
        incoming.target = incoming.raw_path = without_template(incoming.raw_path)
        return await self._answer(incoming, send, rendered, clauses, params, started)

    def has_clauses(self, body: dict[str, Any]) -> bool:
        """Whether a body has kNN clauses of ours, be they right or wrong."""
        try:
            return bool(clauses_of(body, most=self._max_window))
        except EsTtcError:
            return True

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`: each item on its own, the rounds of all retrievals in step."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        items = items_of(text) if text is not None and any(mark in text for mark in MARKS) else None
        read = [] if items is None else [self._read_item(line) for _, line in items]
        if items is None or not any(read):
            return await self._searches.msearch(incoming, send)
        require_json_answer(incoming, params)
        faults = {number: one for number, one in enumerate(read) if isinstance(one, EsTtcError)}
        asked = {number: one for number, one in enumerate(read) if isinstance(one, tuple)}
        questions = [
            _question(incoming, items[number][0], items[number][0], clause, body, params, started)
            for number, (body, clauses) in asked.items()
            for clause in clauses
        ]
        replaced = iter(await self._retrieving.answer(questions, incoming.target, _query_string(params)))
        lines: list[bytes] = []
        answered: dict[int, list[Replacement]] = {}
        for number, (header, line) in enumerate(items):
            sent = line
            if number in asked:
                body, clauses = asked[number]
                outcomes = [next(replaced) for _ in clauses]
                fault = next((one for one in outcomes if isinstance(one, EsTtcError)), None)
                if fault is None:
                    answered[number] = [one for one in outcomes if isinstance(one, Replacement)]
                    sent = jsonio.dumps(_changed(body, answered[number]))
                else:
                    faults[number] = fault
            lines += [header, NOTHING if number in faults else sent]
        incoming.replace_body(b"\n".join(lines) + b"\n")
        captured = Captured(incoming)
        outcome = await self._searches.msearch(incoming, captured)
        return await _merged(captured, send, outcome, params, faults, answered)

    async def _answer(
        self,
        incoming: Incoming,
        send: Send,
        body: dict[str, Any],
        clauses: Sequence[Clause],
        params: Sequence[tuple[str, str]],
        started: float,
    ) -> Outcome:
        require_json_answer(incoming, params)
        door = jsonio.dumps({name: value for name, value in params if name in _OF_THE_DOOR})
        questions = [_question(incoming, b"", door, clause, body, params, started) for clause in clauses]
        path = incoming.target.rstrip(b"/").removesuffix(b"_search") + b"_msearch"
        outcomes = await self._retrieving.answer(questions, path, b"")
        for one in outcomes:
            if isinstance(one, EsTtcError) and is_refusal(one):
                return await refused(incoming, send, one)
            if isinstance(one, EsTtcError):
                raise one
        replaced = [one for one in outcomes if isinstance(one, Replacement)]
        incoming.replace_body(jsonio.dumps(_changed(body, replaced)))
        captured = Captured(incoming)
        outcome = await self._searches.search(incoming, captured)
        return await _merged(captured, send, outcome, params, {}, {0: replaced})

    def _clauses(self, text: bytes | None) -> tuple[dict[str, Any], list[Clause]] | None:
        """Return a body and its clauses of ours; None where it has none, or is not ours to judge."""
        if text is None or not any(mark in text for mark in MARKS):
            return None
        try:
            body = jsonio.loads(text)
        except ValueError:
            return None
        clauses = clauses_of(body, most=self._max_window) if isinstance(body, dict) else []
        return (body, clauses) if clauses else None

    def _read_item(self, line: bytes) -> tuple[dict[str, Any], list[Clause]] | EsTtcError | None:
        try:
            return self._clauses(line)
        except EsTtcError as error:
            return error


def _question(
    incoming: Incoming,
    header: bytes,
    door: bytes,
    clause: Clause,
    body: Mapping[str, Any],
    params: Sequence[tuple[str, str]],
    started: float,
) -> Question:
    url = dict(params)
    size = url.get("size", body.get("size", DEFAULT_SIZE))
    wanted = int(size) if str(size).isdigit() else DEFAULT_SIZE  # the engine will say what is wrong with it
    return Question(clause, body, wanted, caller_of(incoming, body, header), door, own_timeout(body, url), started)


def _query_string(params: Sequence[tuple[str, str]]) -> bytes:
    return b"".join(b"search_type=" + value.encode() for name, value in params if name == "search_type")


def _changed(body: Mapping[str, Any], replaced: Sequence[Replacement]) -> dict[str, Any]:
    """Return the body that is left: native queries in the clauses' places, and the text told to a rescorer of ours."""
    changed = put_in_place(body, [(one.clause, one.query) for one in replaced])
    return with_text(changed, body, {one.clause.texts for one in replaced})


async def _merged(
    captured: Captured,
    send: Send,
    outcome: Outcome,
    params: Sequence[tuple[str, str]],
    faults: Mapping[int, EsTtcError],
    answered: Mapping[int, Sequence[Replacement]],
) -> Outcome:
    """Send the answer with what there is to say about each search's retrievals."""
    filter_path = dict(params).get("filter_path", "")
    every = [one for replacements in answered.values() for one in replacements]

    def add(number: int, answer: dict[str, Any]) -> None:
        _add(answer, answered[number], filter_path)

    return await captured.merged(
        send,
        outcome,
        params,
        faults,
        dict.fromkeys(answered, add),
        applied=all(one.applied for one in every),
        ours=any(one.summary is not None for one in every),
    )


def _add(answer: dict[str, Any], replacements: Sequence[Replacement], filter_path: str) -> None:
    """Add to an answer what there is to say: beside what a rescoring of ours has said, below ``knn``."""
    summaries = [one.summary for one in replacements if one.summary is not None]
    if not summaries:
        return
    ms = sum(one["took"]["encode"] + one["took"]["search"] for one in summaries)
    add_summary(answer, "knn", summaries, ms, filter_path)
    for hit in answer.get("hits", {}).get("hits", ()):
        identity = (hit.get("_index", ""), hit.get("_id", ""))
        found = next((one.details[identity] for one in replacements if identity in one.details), None)
        if found is not None:
            hit["_ttc"] = {**hit["_ttc"], "knn": found} if "_ttc" in hit else found

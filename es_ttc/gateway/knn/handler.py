"""Requests with kNN clauses of ours: the clauses are answered and replaced, and the rest goes its usual way.

What is left is a search like any other: it is passed through, or rescored by a section of ours in ``rescore``. The
engine's answer then gets what there is to say about the retrieval. Everything beside the clause is the engine's own:
`_source`, highlighting, aggregations, sorting, pages and explanations see native queries that match the documents
found, with their scores.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from starlette.types import Message, Send

from es_ttc.errors import EngineError, EsTtcError
from es_ttc.gateway import jsonio
from es_ttc.gateway.filter_path import filtered
from es_ttc.gateway.incoming import Incoming, RawHeaders
from es_ttc.gateway.knn.clauses import MARKS, TEXT, Clause, clauses_of, put_in_place
from es_ttc.gateway.knn.retrieving import Question, Replacement, Retrieving
from es_ttc.gateway.proxy import end_answer, json_headers, start_answer
from es_ttc.gateway.query_text import texts_of
from es_ttc.gateway.search import (
    Outcome,
    SearchHandler,
    caller_of,
    items_of,
    require_json_answer,
    without_template,
)
from es_ttc.gateway.search_body import DEFAULT_SIZE, find_rescore, own_timeout
from es_ttc.gateway.section import KEY

_APPLIED = b"x-ttc-applied"
_OF_THE_DOOR = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_unavailable", "preference", "routing", "search_type",
)  # fmt: skip
_NOTHING = b'{"size":0,"query":{"match_none":{}}}'
"""What the engine is asked in the place of an item that has gone wrong already, so that the others keep theirs."""


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

    async def template(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search/template`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        rendered = await self._searches.rendered_template(incoming, text)
        clauses = [] if rendered is None else clauses_of(rendered, most=self._max_window)
        if rendered is None or not clauses:
            return await self._searches.template(incoming, send, rendered)
        incoming.target = incoming.raw_path = without_template(incoming.raw_path)
        return await self._answer(incoming, send, rendered, clauses, params, started)

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
            lines += [header, _NOTHING if number in faults else sent]
        incoming.replace_body(b"\n".join(lines) + b"\n")
        captured = _Captured(incoming)
        outcome = await self._searches.msearch(incoming, captured)
        return await captured.merged(send, outcome, params, faults, answered)

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
            if isinstance(one, EsTtcError) and _is_refusal(one):
                return await _refused(incoming, send, one)
            if isinstance(one, EsTtcError):
                raise one
        replaced = [one for one in outcomes if isinstance(one, Replacement)]
        incoming.replace_body(jsonio.dumps(_changed(body, replaced)))
        captured = _Captured(incoming)
        outcome = await self._searches.search(incoming, captured)
        return await captured.merged(send, outcome, params, {}, {0: replaced})

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


class _Captured:
    """Keeps an answer, to which something is added before it goes to the caller."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._status = 200
        self._headers: RawHeaders = []
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message["headers"])
        else:
            self._body.append(message.get("body", b""))

    async def merged(
        self,
        send: Send,
        outcome: Outcome,
        params: Sequence[tuple[str, str]],
        faults: Mapping[int, EsTtcError],
        answered: Mapping[int, Sequence[Replacement]],
    ) -> Outcome:
        """Send the answer with what there is to say about each search's retrievals.

        Args:
            send: Where it goes.
            outcome: How the rest of the request ended.
            params: The URL parameters.
            faults: Errors of items of an `_msearch`, by number.
            answered: What was put in place, by the item's number; a `_search` is item 0.
        """
        body = b"".join(self._body)
        if self._status != 200:
            await self._send(send, self._headers, body)
            return outcome
        answer = jsonio.loads(body) if body.strip() else {}
        url = dict(params)
        for number, replacements in answered.items():
            one = answer["responses"][number] if "responses" in answer else answer
            if "error" not in one:
                _add(one, replacements, url.get("filter_path", ""))
        for number, fault in faults.items():
            answer["responses"][number] = fault.upstream if _is_refusal(fault) else fault.body()
        applied = outcome.applied and all(one.applied for replaced in answered.values() for one in replaced)
        ours = any(one.summary is not None for replaced in answered.values() for one in replaced)
        headers = [pair for pair in self._headers if pair[0] not in (b"content-length", _APPLIED)]
        if ours or any(name == _APPLIED for name, _ in self._headers):
            headers.append((_APPLIED, b"true" if applied else b"false"))
        pretty = url.get("pretty", "false") in ("", "true")
        await self._send(send, headers, jsonio.dumps(answer, pretty=pretty))
        return Outcome("msearch" if outcome.kind == "msearch" or faults else "search", 200, applied)

    async def _send(self, send: Send, headers: RawHeaders, body: bytes) -> None:
        kept = [pair for pair in headers if pair[0] != b"content-length"]
        await start_answer(send, self._status, [*kept, (b"content-length", str(len(body)).encode())])
        await end_answer(self._incoming, send, body)


def _is_refusal(fault: EsTtcError) -> TypeGuard[EngineError]:
    """Whether the engine itself has told the caller what is wrong: no such index, no right to read it."""
    if not isinstance(fault, EngineError) or not isinstance(fault.upstream, dict):
        return False
    return 400 <= (fault.upstream_status or 0) < 500


async def _refused(incoming: Incoming, send: Send, refusal: EngineError) -> Outcome:
    """Answer with the engine's own refusal."""
    body = jsonio.dumps(refusal.upstream)
    status = refusal.upstream_status or refusal.status
    await start_answer(send, status, json_headers(incoming.headers, body))
    await end_answer(incoming, send, body)
    return Outcome("search", status)


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
    texts = {one.clause.texts for one in replaced}
    rescore = find_rescore(body.get("rescore"))
    if rescore is None or len(texts) != 1 or any(texts_of(body.get("query"))):
        return changed
    section = rescore[1][KEY]
    [asked] = texts
    if not asked or not isinstance(section, dict) or section.keys() & {TEXT, "query_texts"}:
        return changed
    told = {TEXT: asked[0]} if len(asked) == 1 else {"query_texts": list(asked)}
    changed["rescore"] = [*rescore[0], {**rescore[1], KEY: {**section, **told}}]
    return changed


def _add(answer: dict[str, Any], replacements: Sequence[Replacement], filter_path: str) -> None:
    """Add to an answer what there is to say: beside what a rescoring of ours has said, below ``knn``."""
    summaries = [one.summary for one in replacements if one.summary is not None]
    if not summaries:
        return
    told: dict[str, Any] = summaries[0] if len(summaries) == 1 else {"knn": summaries}
    if KEY in answer:
        told = {**answer[KEY], "knn": told.get("knn", told)}
    shown = filtered({KEY: told}, filter_path, keep_empty=False) if filter_path else {KEY: told}
    answer.update(shown)
    if isinstance(answer.get("took"), int):
        answer["took"] += round(sum(one["took"]["encode"] + one["took"]["search"] for one in summaries))
    for hit in answer.get("hits", {}).get("hits", ()):
        identity = (hit.get("_index", ""), hit.get("_id", ""))
        found = next((one.details[identity] for one in replacements if identity in one.details), None)
        if found is not None:
            hit["_ttc"] = {**hit["_ttc"], "knn": found} if "_ttc" in hit else found

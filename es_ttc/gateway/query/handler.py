"""Requests with queries of ours: these are rewritten, and the rest goes its usual way.

What is left is a search like any other. It may have kNN clauses or a rescoring of ours too; the engine's answer then
gets what there is to say about the rewriting.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.types import Send

from es_ttc.errors import EsTtcError
from es_ttc.gateway import jsonio
from es_ttc.gateway.captured import NOTHING, Captured, add_summary, is_refusal, refused, send_joined, with_text
from es_ttc.gateway.incoming import Incoming
from es_ttc.gateway.knn.clauses import put_at
from es_ttc.gateway.knn.handler import KnnHandler
from es_ttc.gateway.query.clauses import QueryClause, clauses_of
from es_ttc.gateway.query.rewriting import RewriteQuestion, Rewriting, Rewritten, show_matches
from es_ttc.gateway.search import (
    Outcome,
    SearchHandler,
    caller_of,
    items_of,
    require_json_answer,
    without_template,
)
from es_ttc.gateway.search_body import MARK, own_timeout

_REWRITTEN_AT_ONCE = 8  # items of one `_msearch`

_Found = tuple[dict[str, Any], list[QueryClause]]


class QueryHandler:
    """Answers searches with queries of ours, and hands all others on.

    Args:
        searches: Reads requests and renders templates.
        knn: Answers what is left of a search.
        rewriting: Rewrites queries.
    """

    def __init__(self, searches: SearchHandler, knn: KnnHandler, rewriting: Rewriting) -> None:
        self._searches = searches
        self._knn = knn
        self._rewriting = rewriting

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        found = _found(text)
        if found is None:
            return await self._knn.search(incoming, send)
        return await self._answer(incoming, send, found, params, started)

    async def template(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search/template`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        rendered = await self._searches.rendered_template(incoming, text)
        clauses = [] if rendered is None else clauses_of(rendered)
        if rendered is None or not clauses:
            return await self._knn.template(incoming, send, rendered)
        incoming.target = incoming.raw_path = without_template(incoming.raw_path)
        return await self._answer(incoming, send, (rendered, clauses), params, started)

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`: each item on its own."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        items = items_of(text) if text is not None and MARK in text else None
        read = [] if items is None else [_read_item(line) for _, line in items]
        if items is None or not any(read):
            return await self._knn.msearch(incoming, send)
        require_json_answer(incoming, params)
        room = asyncio.Semaphore(_REWRITTEN_AT_ONCE)

        async def rewrite(number: int, one: "_Found | EsTtcError | None") -> "list[Rewritten] | EsTtcError | None":
            if not isinstance(one, tuple):
                return one
            async with room:
                try:
                    return await self._rewritten(incoming, one, params, started, header=items[number][0])
                except EsTtcError as error:
                    return error

        outcomes = await asyncio.gather(*(rewrite(number, one) for number, one in enumerate(read)))
        faults = {number: one for number, one in enumerate(outcomes) if isinstance(one, EsTtcError)}
        answered = {number: one for number, one in enumerate(outcomes) if isinstance(one, list)}
        lines: list[bytes] = []
        for number, (header, line) in enumerate(items):
            one = read[number]
            if number in answered and isinstance(one, tuple):
                line = jsonio.dumps(_changed(one[0], answered[number]))
            lines += [header, NOTHING if number in faults else line]
        incoming.replace_body(b"\n".join(lines) + b"\n")
        captured = Captured(incoming)
        outcome = await self._knn.msearch(incoming, captured)
        return await _merged(captured, send, outcome, params, faults, answered)

    async def msearch_template(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch/template`: what renders to clauses of ours as an `_msearch`, and the rest as it came."""
        _, text, params = await self._searches.read(incoming)
        items = None if text is None else items_of(text)
        if items is None:
            return await self._searches.msearch_template(incoming, send)
        bodies = await self._searches.rendered_items(incoming, items)
        ours = [number for number, body in enumerate(bodies) if body is not None and self._has_clauses(body)]
        if not ours:
            return await self._searches.msearch_template(incoming, send, bodies)
        require_json_answer(incoming, params)
        rest = [number for number in range(len(items)) if number not in ours]
        searches = incoming.beside(
            without_template(incoming.raw_path),
            _joined((items[place][0], jsonio.dumps(bodies[place])) for place in ours),
        )
        parts: list[tuple[Captured, Sequence[int]]] = [(Captured(incoming), ours)]
        applied = (await self.msearch(searches, parts[0][0])).applied
        if rest:
            templates = incoming.beside(incoming.raw_path, _joined(items[place] for place in rest))
            parts.append((Captured(incoming), rest))
            others = await self._searches.msearch_template(templates, parts[1][0], [bodies[place] for place in rest])
            applied = applied and others.applied
        pretty = dict(params).get("pretty", "false") in ("", "true")
        return Outcome("msearch", await send_joined(send, parts, applied=applied, pretty=pretty), applied)

    def _has_clauses(self, body: dict[str, Any]) -> bool:
        """Whether a body has clauses of ours, in its query or for kNN, be they right or wrong."""
        try:
            return bool(clauses_of(body)) or self._knn.has_clauses(body)
        except EsTtcError:
            return True

    async def _answer(
        self, incoming: Incoming, send: Send, found: _Found, params: Sequence[tuple[str, str]], started: float
    ) -> Outcome:
        require_json_answer(incoming, params)
        try:
            rewritten = await self._rewritten(incoming, found, params, started)
        except EsTtcError as error:
            if is_refusal(error):
                return await refused(incoming, send, error)
            raise
        incoming.replace_body(jsonio.dumps(_changed(found[0], rewritten)))
        captured = Captured(incoming)
        outcome = await self._knn.search(incoming, captured)
        return await _merged(captured, send, outcome, params, {}, {0: rewritten})

    async def _rewritten(
        self,
        incoming: Incoming,
        found: _Found,
        params: Sequence[tuple[str, str]],
        started: float,
        *,
        header: bytes = b"",
    ) -> list[Rewritten]:
        body, clauses = found
        caller, timeout_ms = caller_of(incoming, body, header), own_timeout(body, dict(params))
        questions = [RewriteQuestion(clause, body, caller, timeout_ms, started) for clause in clauses]
        return list(await asyncio.gather(*map(self._rewriting.rewritten, questions)))


def _found(text: bytes | None) -> _Found | None:
    """Return a body and its queries of ours; None where it has none, or is not ours to judge."""
    if text is None or MARK not in text:
        return None
    try:
        body = jsonio.loads(text)
    except ValueError:
        return None
    clauses = clauses_of(body) if isinstance(body, dict) else []
    return (body, clauses) if clauses else None


def _read_item(line: bytes) -> _Found | EsTtcError | None:
    try:
        return _found(line)
    except EsTtcError as error:
        return error


def _joined(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b\n%b\n" % item for item in items)


def _changed(body: dict[str, Any], rewritten: Sequence[Rewritten]) -> dict[str, Any]:
    """Return the body that is left: native queries in the places of ours, and the text told to a rescorer of ours."""
    changed = body
    for one in rewritten:
        changed = put_at(changed, one.clause.place, one.query)
    return with_text(changed, body, {(one.clause.text,) for one in rewritten})


async def _merged(
    captured: Captured,
    send: Send,
    outcome: Outcome,
    params: Sequence[tuple[str, str]],
    faults: Mapping[int, EsTtcError],
    answered: Mapping[int, Sequence[Rewritten]],
) -> Outcome:
    """Send the answer with what there is to say about each search's rewriting."""
    filter_path = dict(params).get("filter_path", "")

    def add(number: int, answer: dict[str, Any]) -> None:
        rewritten = answered[number]
        add_summary(answer, "query", [one.summary for one in rewritten], max(one.ms for one in rewritten), filter_path)
        if any(one.detail for one in rewritten):
            show_matches(answer.get("hits", {}).get("hits", []))

    applied = all(one.applied for several in answered.values() for one in several)
    return await captured.merged(
        send, outcome, params, faults, dict.fromkeys(answered, add), applied=applied, ours=bool(answered)
    )

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
from es_ttc.gateway.captured import Captured, add_summary, send_joined, with_text
from es_ttc.gateway.hook import Found, HookHandler, Params
from es_ttc.gateway.incoming import Incoming
from es_ttc.gateway.knn.clauses import put_at
from es_ttc.gateway.knn.handler import KnnHandler
from es_ttc.gateway.limits import MARK
from es_ttc.gateway.limits import MARKS as ANY_MARK
from es_ttc.gateway.query.clauses import QueryClause, clauses_of
from es_ttc.gateway.query.rewriting import RewriteQuestion, Rewriting, Rewritten, show_matches
from es_ttc.gateway.search import Outcome, SearchHandler, caller_of, require_json_answer, without_template
from es_ttc.gateway.search_body import own_timeout

_REWRITTEN_AT_ONCE = 8  # items of one `_msearch`


class QueryHandler(HookHandler[QueryClause, Rewritten]):
    """Answers searches with queries of ours, and hands all others on.

    Args:
        searches: Reads requests and renders templates.
        knn: Answers what is left of a search.
        rewriting: Rewrites queries.
    """

    marks = (MARK,)

    def __init__(self, searches: SearchHandler, knn: KnnHandler, rewriting: Rewriting) -> None:
        super().__init__(searches, knn)
        self._knn = knn
        self._rewriting = rewriting

    async def search(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search`; most have nothing of ours, whatever the hook, and are not looked at again."""
        if await self._may_be_ours(incoming):
            return await super().search(incoming, send)
        return await self._searches.passed(incoming, send)

    async def msearch(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch`."""
        if await self._may_be_ours(incoming):
            return await super().msearch(incoming, send)
        return await self._searches.passed(incoming, send)

    async def template(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_search/template`."""
        started = time.perf_counter()
        _, text, params = await self._searches.read(incoming)
        rendered = await self._searches.rendered_template(incoming, text)
        clauses = [] if rendered is None else self.clauses_of(rendered)
        if rendered is None or not clauses:
            return await self._knn.template(incoming, send, rendered)
        incoming.target = incoming.raw_path = without_template(incoming.raw_path)
        return await self.answer(incoming, send, Found(rendered, clauses), params, started)

    async def msearch_template(self, incoming: Incoming, send: Send) -> Outcome:
        """Answer one `_msearch/template`: what renders to clauses of ours as an `_msearch`, and the rest as it came."""
        _, text, params = await self._searches.read(incoming)
        items = None if text is None else await self._searches.items(text)
        if items is None:
            return await self._searches.msearch_template(incoming, send)
        bodies = await self._searches.rendered_items(incoming, items)
        ours = [
            number
            for number, body in enumerate(bodies)
            if body is not None and (self.has_clauses(body) or self._knn.has_clauses(body))
        ]
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

    async def _may_be_ours(self, incoming: Incoming) -> bool:
        text = (await self._searches.read(incoming))[1]
        return text is not None and any(mark in text for mark in ANY_MARK)

    def clauses_of(self, body: Mapping[str, Any]) -> list[QueryClause]:
        """Return the queries of ours in a body."""
        return clauses_of(body, limits=self._searches.limits)

    async def answers(
        self, incoming: Incoming, asked: Sequence[Found[QueryClause]], params: Params, started: float
    ) -> list[list[Rewritten] | EsTtcError]:
        """Return what each query is rewritten to, a few searches at a time."""
        room = asyncio.Semaphore(_REWRITTEN_AT_ONCE)

        async def rewritten(found: Found[QueryClause]) -> list[Rewritten] | EsTtcError:
            caller = caller_of(incoming, found.body, found.header)
            timeout_ms = own_timeout(found.body, dict(params))
            questions = [RewriteQuestion(one, found.body, caller, timeout_ms, started) for one in found.clauses]
            async with room:
                try:
                    return list(await asyncio.gather(*map(self._rewriting.rewritten, questions)))
                except EsTtcError as error:
                    return error

        return list(await asyncio.gather(*map(rewritten, asked)))

    def changed(self, body: dict[str, Any], answers: Sequence[Rewritten]) -> dict[str, Any]:
        """Put native queries in the places of ours, and tell the text to a rescorer of ours."""
        changed = body
        for one in answers:
            changed = put_at(changed, one.clause.place, one.query)
        return with_text(changed, body, {(one.clause.text,) for one in answers})

    def add(self, answer: dict[str, Any], answers: Sequence[Rewritten], filter_path: str) -> None:
        """Add what there is to say about the rewriting."""
        add_summary(answer, "query", [one.summary for one in answers], max(one.ms for one in answers), filter_path)
        if any(one.detail for one in answers):
            show_matches(answer.get("hits", {}).get("hits", []))

    def applied(self, answer: Rewritten) -> bool:
        """Whether the query was rewritten."""
        return answer.applied

    def told(self, answer: Rewritten) -> bool:  # noqa: ARG002 - always
        """There is always something to say."""
        return True


def _joined(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b\n%b\n" % item for item in items)

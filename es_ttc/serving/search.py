"""The way of a search: rewrite, retrieve, plan, first pass, rescore, respond.

A `_search` is one search, an `_msearch` several on the same way. Sections inside `query` and `knn` become native
queries before the engine is asked; a section in `rescore` reorders what it answers.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.types import Message, Send

from es_ttc.common.long_steps import long_step
from es_ttc.errors import EngineError, EsTtcError, RequestTooLarge, SeveralTexts
from es_ttc.serving.engine import EngineRefusal, Refusal
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.limits import check_clauses
from es_ttc.serving.http.raw_request import RawRequest, answer_json
from es_ttc.serving.http.signing import require_changeable
from es_ttc.serving.knn.clauses import KnnClause, parse_clause, put_in_place
from es_ttc.serving.knn.retrieval import RetrievalRequest, RetrievalResult, add_retrievals, retrieve
from es_ttc.serving.load import CallerLoad
from es_ttc.serving.plan.items import with_rescore, with_text
from es_ttc.serving.plan.plan import DEFAULT_SIZE, SearchPlan, own_timeout, plan_search
from es_ttc.serving.request.body import FoundClause, body_integer, find_clauses, url_integer
from es_ttc.serving.request.first_pass import FirstPass, first_pass
from es_ttc.serving.request.request import AcceptedCallers, Api, RequestReader, SearchItem, SearchRequest
from es_ttc.serving.request.response import (
    Outcome,
    add_method_to_hits,
    is_refusal,
    item_error,
    respond,
    respond_as_asked,
    response_json,
    with_mark,
)
from es_ttc.serving.request.templates import render_templates
from es_ttc.serving.rescoring import RescoredSearch, Rescoring
from es_ttc.serving.rewriting import (
    QueryClause,
    RewriteResult,
    RewriteService,
    add_rewritings,
    parse_query,
    put_queries,
)
from es_ttc.serving.summary import Summary
from es_ttc.serving.tracing import span

MAX_AT_ONCE = 8
"""Maximum number of searches of one `_msearch` that are rewritten, or rescored, at the same time."""
_BEGUN_AT_ONCE = 20  # searches of one `_msearch`, before the event loop runs other tasks
_LONG = 2**20  # assumed size of a response that is filtered

C = TypeVar("C")


@dataclass(slots=True, eq=False)
class _Search:
    """One search of a request, with the results of its stages."""

    item: SearchItem
    rewritten: Sequence[RewriteResult] = ()
    retrieved: Sequence[RetrievalResult] = ()
    rescored: RescoredSearch | None = None

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of its clauses in `query` and `knn`."""
        results: list[RetrievalResult | RewriteResult] = [*self.retrieved, *self.rewritten]
        return [result.summary for result in results if result.summary is not None]

    @property
    def applied(self) -> bool:
        """Whether every method was applied."""
        return all(summary.applied for summary in self.summaries) and (self.rescored is None or self.rescored.applied)

    @property
    def has_summary(self) -> bool:
        """Whether its response contains a summary."""
        return self.rescored is not None or bool(self.summaries)

    @property
    def shows_details(self) -> bool:
        """Whether a section asks for details of hits."""
        retrieved = [result.clause.section for result in self.retrieved]
        rewritten = [result.clause.section for result in self.rewritten]
        sections = [*retrieved, *rewritten, *(() if self.rescored is None else self.rescored.sections)]
        return any(section is not None and section.detail for section in sections)

    def may_answer_plainly(self, refusal: Refusal) -> bool:
        """Return whether the caller's own search is sent after the engine has refused the changed one."""
        return self.rescored is not None and self.rescored.has_plain_answer and refusal.of_the_body


class Searches:
    """Answers `_search`, `_msearch` and the templates of both."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._upstream = gateway.upstream
        self._engine = gateway.engine
        self._offload = gateway.offload
        self._callers = gateway.callers
        self._rewriting = RewriteService(gateway)
        self._gateway = gateway
        self._rescoring = Rescoring(gateway)
        self._max_window = settings.max_window
        self._reader = RequestReader(gateway.offload)
        self._accepted = AcceptedCallers()

    async def answer(self, incoming: RawRequest, api: Api, send: Send, *, is_template: bool) -> Outcome:
        """Answer one request; a request without a `ttc` section is passed through unchanged."""
        request = await self._reader.read(incoming, api, time.perf_counter(), is_template=is_template)
        if request is None:
            return await self._passed_through(incoming, send)
        searches = [_Search(item) for item in request.items]
        await long_step()
        try:
            with self._gateway.load.of(self._callers.key(incoming)) as load:
                return await self._answer(request, searches, load, send)
        except EngineRefusal as refusal:
            answer = refusal.answer
            await respond(incoming, send, answer.status, answer.headers, answer.body)
            return Outcome(api.kind, answer.status)
        except RequestTooLarge:
            search = None if request.is_multi or request.is_template else searches[0].rescored
            plain = None if search is None else search.plain_body
            if plain is None:
                raise
            return await self._streamed(request, plain, send)
        finally:
            for one in searches:
                one.rescored = None  # it holds the request: the window would be freed by a garbage collection only
            self._gateway.on_demand.start()

    async def ask(self, incoming: RawRequest) -> tuple[Outcome, RawHeaders, bytes]:
        """Answer a search of the gateway's own (:meth:`RawRequest.another`): the outcome, headers and body."""
        headers: RawHeaders = []
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            headers.extend(one for one in message.get("headers", ()) if one[0] != b"content-length")
            parts.append(message.get("body", b""))

        try:
            outcome = await self.answer(incoming, Api.SEARCH, send, is_template=False)
        finally:
            incoming.forget()
        return outcome, headers, b"".join(parts)

    async def _streamed(self, request: SearchRequest, plain: Mapping[str, Any], send: Send) -> Outcome:
        """Pass the engine's answer to the caller's own search on as it arrives: it fits into no memory."""
        request.incoming.forget()
        status = await self._upstream.forward(
            request.incoming,
            send,
            rewritten=jsonio.dumps(plain),
            mark=lambda status: with_mark([], applied=False) if status == 200 else [],
        )
        return Outcome(request.api.kind, status, False)

    async def _answer(
        self, request: SearchRequest, searches: Sequence[_Search], load: CallerLoad, send: Send
    ) -> Outcome:
        version = await self._upstream.version(request.incoming.headers)
        unsupported = None if version is None else version.refusal("the engine")
        if request.is_template:
            await render_templates(request, self._engine, self._offload)
        await self._offload.run(request.size, self._find, searches)
        if any(item.clauses or (request.is_multi and item.error) for item in request.items):
            request.require_json()
        for step in (self._rewrite, self._retrieve, partial(self._plan, load)):
            await step(request, searches)
            error = None if request.is_multi else request.items[0].error
            if error is not None and is_refusal(error):
                status = error.upstream_status or error.status
                await answer_json(request.incoming, send, status, error.upstream)
                return Outcome(request.api.kind, status)
            if error is not None:
                raise unsupported or error
        if not any(item.is_ours for item in request.items):
            return await self._passed_through(request.incoming, send)
        if unsupported is not None:
            raise unsupported
        if self._upstream.signer is not None:
            require_changeable(request.incoming.headers, self._upstream.signer)
        request.require_json()
        for item in request.items if request.is_template else ():
            item.path = request.path if item.is_ours else item.path
        refusal: EngineRefusal | None = None
        with span("first_pass"):
            try:
                first = await first_pass(self._engine, request)
            except EngineRefusal as refused:
                if request.is_multi or not searches[0].may_answer_plainly(refused):
                    raise
                first, refusal = FirstPass(refused.answer.headers, {0: ({}, refused.answer.ms)}), refused
        if request.is_multi:
            response = await self._multi(request, searches, first)
        else:
            response = await self._completed(request, searches[0], *first.responses[0], refusal)
        applied = all(search.applied for search in searches)
        headers: RawHeaders = first.headers
        if any(search.has_summary for search in searches):
            headers = with_mark(headers, applied=applied)
        body = await self._rendered(request, response, first.size)
        del first, response  # they are not kept in memory while the client reads
        await respond_as_asked(request.incoming, send, headers, body, self._offload)
        return Outcome(request.api.kind, 200, applied)

    async def _passed_through(self, incoming: RawRequest, send: Send) -> Outcome:
        status = await self._upstream.forward(incoming, send, body=incoming.whole_body)
        return Outcome("passthrough", status)

    def _find(self, searches: Sequence[_Search]) -> None:
        """Find the clauses of each search that the gateway answers."""
        for search, body in _open(searches):
            item = search.item
            try:
                item.body = with_rescore(body)
                item.clauses = find_clauses(body)
                for hook, is_knn in (("query", False), ("knn", True)):
                    check_clauses(sum(clause.is_knn == is_knn for clause in item.clauses), hook)
            except EsTtcError as error:
                item.error = error

    async def _rewrite(self, request: SearchRequest, searches: Sequence[_Search]) -> None:
        """Replace the `ttc` queries of each search by native queries."""
        parsed = _parsed(searches, lambda one: None if one.is_knn else parse_query(one))
        room = asyncio.Semaphore(MAX_AT_ONCE)

        async def rewritten(search: _Search, body: dict[str, Any], clauses: Sequence[QueryClause]) -> None:
            item = search.item
            caller, shards = request.caller(item), request.shard_params(item)
            timeout_ms = own_timeout(body, request.params.url)
            context = (body, caller, shards, timeout_ms, request.started)
            async with room:
                try:
                    answers = await asyncio.gather(*(self._rewriting.rewritten(clause, *context) for clause in clauses))
                except EsTtcError as error:
                    item.error = error
                    return
            item.body = with_text(put_queries(body, answers), body, {(answer.clause.text,) for answer in answers})
            item.is_changed, search.rewritten = True, answers

        await asyncio.gather(*(rewritten(*one) for one in parsed))

    async def _retrieve(self, request: SearchRequest, searches: Sequence[_Search]) -> None:
        """Replace the kNN clauses of each search by native queries; the searches of all are sent in batches."""
        parsed = _parsed(searches, lambda one: parse_clause(one, self._max_window) if one.is_knn else None)
        if not parsed:
            return
        questions = [
            self._retrieval_of(request, search.item, body, clause)
            for search, body, clauses in parsed
            for clause in clauses
        ]
        results = iter(await retrieve(self._gateway, questions, *request.msearch_target()))
        for search, body, clauses in parsed:
            item, answers = search.item, list[RetrievalResult]()
            for result in [next(results) for _ in clauses]:
                if isinstance(result, EsTtcError):
                    item.error = item.error or result
                else:
                    answers.append(result)
            if item.error is None:
                replaced = put_in_place(body, [(answer.clause, answer.query) for answer in answers])
                item.body = with_text(replaced, body, {answer.clause.texts for answer in answers})
                item.is_changed, search.retrieved = True, answers

    def _retrieval_of(
        self, request: SearchRequest, item: SearchItem, body: dict[str, Any], clause: KnnClause
    ) -> RetrievalRequest:
        url = request.params.url
        size = url_integer(url["size"]) if "size" in url else body_integer(body.get("size", DEFAULT_SIZE))
        return RetrievalRequest(
            clause,
            body,
            DEFAULT_SIZE if size is None or size < 0 else size,  # the engine returns the error of an invalid size
            request.caller(item),
            request.msearch_header(item),
            own_timeout(body, url),
            request.started,
            self._accepted.has(request, item),
        )

    async def _plan(self, load: CallerLoad, request: SearchRequest, searches: Sequence[_Search]) -> None:
        """Parse each section in `rescore`, and start the work that does not need the first pass."""
        plans = await self._offload.run(request.size, self._plans, searches)
        if any(request.is_multi or isinstance(plan, SearchPlan) for _, plan in plans):
            request.require_json()
        for number, (search, plan) in enumerate(plans, 1):
            item = search.item
            try:
                if isinstance(plan, EsTtcError):
                    raise plan
                if isinstance(plan.problem, SeveralTexts):
                    plan = await self._by_mapping(request, item, plan, plan.problem.fields)
                self._callers.windows(request.incoming, 1 + len(plan.later))
                accepted = self._accepted.has(request, item)
                search.rescored = await self._rescoring.begin(request, item, plan, load, encode=accepted)
                item.is_changed = True
            except EsTtcError as error:
                item.error = error
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _plans(self, searches: Sequence[_Search]) -> list[tuple[_Search, SearchPlan | EsTtcError]]:
        """Return the plans of the searches with a section in `rescore`, or their errors."""
        plans: list[tuple[_Search, SearchPlan | EsTtcError]] = []
        for search, body in _open(searches):
            try:
                plan = plan_search(body, search.item.params, max_window=self._max_window)
            except EsTtcError as error:
                plans.append((search, error))
            else:
                plans += [] if plan is None else [(search, plan)]
        return plans

    async def _by_mapping(
        self, request: SearchRequest, item: SearchItem, plan: SearchPlan, fields: frozenset[str]
    ) -> SearchPlan:
        """Return the plan of a search with several texts: those in fields that are no text, such as tenants, go."""
        try:
            analysed = await self._gateway.numbers.analysed(fields, request.caller(item))
        except EngineError:
            return plan
        not_text = fields - analysed
        return plan_search(item.body or {}, item.params, max_window=self._max_window, not_text=not_text) or plan

    async def _multi(self, request: SearchRequest, searches: Sequence[_Search], first: FirstPass) -> dict[str, Any]:
        room = asyncio.Semaphore(MAX_AT_ONCE)

        async def completed(position: int, search: _Search) -> Any:
            item = search.item
            if item.error is not None:
                return item_error(item.error)
            response, ms = first.responses[position]
            refusal = None if "hits" in response else Refusal(response.get("status"), response)
            if not item.is_changed or (refusal is not None and not search.may_answer_plainly(refusal)):
                return response
            async with room:
                try:
                    return await self._completed(request, search, response, ms, refusal)
                except EsTtcError as error:
                    return error.body()

        responses = await asyncio.gather(*(completed(*numbered) for numbered in enumerate(searches)))
        took = max(first.took, round((time.perf_counter() - request.started) * 1000))
        return {"took": took, "responses": responses}

    async def _completed(
        self,
        request: SearchRequest,
        search: _Search,
        response: dict[str, Any],
        ms: float,
        refusal: Refusal | None,
    ) -> dict[str, Any]:
        """Return the engine's response in the methods' order, with their summaries."""
        if refusal is None and response["hits"]["hits"]:
            self._accepted.add(request, search.item)
        if search.rescored is not None:
            response = await search.rescored.complete(response, ms, refusal)
        if search.retrieved:
            add_retrievals(response, search.retrieved)
        if search.rewritten:
            add_rewritings(response, search.rewritten)
        if search.shows_details:
            add_method_to_hits(response, applied=search.applied)
        return response

    async def _rendered(self, request: SearchRequest, response: dict[str, Any], size: int) -> bytes:
        """Return a response as JSON, made on a thread if the engine's answers were long."""
        filter_path, pretty = request.params.filter_path, request.params.pretty
        if not filter_path:
            size = size if size > jsonio.LONG else 0
            return await self._offload.run(size, response_json, response, "", pretty=pretty, keep_empty=False)
        keep_empty = await self._upstream.product() == "elasticsearch"
        return await self._offload.run(
            _LONG, response_json, response, filter_path, pretty=pretty, keep_empty=keep_empty
        )


def _open(searches: Iterable[_Search]) -> Iterator[tuple[_Search, dict[str, Any]]]:
    """Yield the searches that may contain a section and have no error, with their bodies."""
    for search in searches:
        if search.item.body is not None and search.item.error is None:
            yield search, search.item.body


def _parsed(
    searches: Iterable[_Search], parse: Callable[[FoundClause], C | None]
) -> list[tuple[_Search, dict[str, Any], list[C]]]:
    """Return the searches with clauses of one hook, parsed; a search with a wrong one gets its error."""
    parsed = []
    for search, body in _open(searches):
        try:
            clauses = [one for one in map(parse, search.item.clauses) if one is not None]
        except EsTtcError as error:
            search.item.error = error
        else:
            parsed += [(search, body, clauses)] if clauses else []
    return parsed

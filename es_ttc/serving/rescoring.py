"""A rescored search: its methods begin beside the first pass, its window is ranked, then its page's hits are read."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.serving.candidates.targets import TargetCache
from es_ttc.serving.cascade import ItemRescoring, begin_items, rank_by_items
from es_ttc.serving.engine import EngineRefusal, Refusal
from es_ttc.serving.features.keys import are_identified
from es_ttc.serving.features.known_marks import Attachment
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.load import CallerLoad
from es_ttc.serving.logs import log
from es_ttc.serving.plan.bodies import AGGREGATIONS, NAMED_SCORES, bare_body
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.first_pass import search_again
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.request.response import add_took, shortest
from es_ttc.serving.request.section import Section
from es_ttc.serving.rescore.collapse import add_inner_hits, expanded, following, rest_of_page
from es_ttc.serving.rescore.evidence import add_evidence
from es_ttc.serving.rescore.page import (
    RankedPage,
    add_lost_shards,
    add_to_total,
    hide,
    set_total,
    shown_hit,
)
from es_ttc.serving.rescore.relevance import calibrated_name
from es_ttc.serving.rescore.two_requests import aggregated, can_split, filled, full_hits, named_hits, union
from es_ttc.serving.rescore.window import SearchAgain, WindowRescoring
from es_ttc.serving.strategies.rescoring import StrategyReranking, StrategyRescoring
from es_ttc.serving.summary import Summary, record_fallback
from es_ttc.serving.tracing import span


class Rescoring:
    """Starts the rescoring of searches."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._targets = TargetCache()
        self._strategies = StrategyReranking(gateway)

    async def begin(
        self, request: SearchRequest, item: SearchItem, plan: SearchPlan, load: CallerLoad, *, encode: bool
    ) -> "RescoredSearch":
        """Check the methods of a search, start their work that does not need the first pass, and change its body.

        What the methods give up is decided here, by the caller's ``load``. The query is encoded during the first pass
        if ``encode``, else after it.
        """
        item.params, caller = plan.params, request.caller(item)
        calibrated, relevance = unquote(caller.indices), self._gateway.tuned.relevance
        if plan.section.relevance_key is not None and relevance:
            calibrated = await calibrated_name(relevance, caller, self._gateway.engine.as_caller(caller))
        again = partial(search_again, self._gateway.engine, request, item)

        def begin(one: SearchPlan) -> WindowRescoring | StrategyRescoring:
            if one.problem is not None and one.section.on_error == "fail":
                raise one.problem
            if one.section.method in STRATEGIES:
                return self._strategies.begin(one.undivided_query(), caller, request.started, encode=encode)
            return WindowRescoring.begin(
                self._gateway, self._targets, request, item, one, again, load, calibrated=calibrated, encode=encode
            )

        def begin_all(plan: SearchPlan) -> tuple[SearchPlan, tuple[ItemRescoring, ...]]:
            if plan.later:
                return begin_items(plan, begin)
            item = begin(plan)
            return item.plan, (item,)

        whole, items = begin_all(plan)
        if whole.numbers and caller.pit is None:  # a point in time names no indices: the window is examined
            try:
                await self._require_numbers(whole, caller)
            except MissingFeature as problem:
                whole, items = begin_all(_without_numbers(plan, items, problem))
        bare = items[0].reads_bare_hits and not request.is_multi and can_split(whole)
        search = RescoredSearch(self._gateway, whole, items, caller, again, request.started, bare=bare)
        item.body = search.first_pass
        if whole.asks_named_scores:
            others = [pair for pair in plan.params if pair[0] != NAMED_SCORES]
            item.params = [*others, (NAMED_SCORES, "true")]
        return search

    async def _require_numbers(self, plan: SearchPlan, caller: Caller) -> None:
        """Refuse a search whose target lacks a numeric field that the method reads."""
        defined = {name for part in ("derived", "runtime_mappings") for name in plan.body.get(part) or ()}
        fields = [name for name in plan.numbers if name not in defined]
        await self._gateway.numbers.require(fields, f"method [{plan.section.method}] reads", caller)


class RescoredSearch:
    """One search whose window is rescored; if `bare`, the page's hits are requested after a first pass without them.

    Bare hits have ids only if they are `named`, as those of an attached index are whose writes are not known.
    """

    applied: bool = True
    """Whether every method was applied; if not, the order is the engine's own."""

    def __init__(
        self,
        gateway: Gateway,
        plan: SearchPlan,
        items: Sequence[ItemRescoring],
        caller: Caller,
        search_again: SearchAgain,
        started: float,
        *,
        bare: bool,
    ) -> None:
        self._plan = plan
        self._items = items
        self._gateway = gateway
        self._caller = caller
        self._search_again = search_again
        self._started = started
        self._bare = bare
        self._attached = gateway.attached
        self._by_writes = self._attached.sources_by_writes(caller) if bare else frozenset()
        self._named = self._attached.expects_ids(caller) and not self._by_writes
        first = items[0]
        self._counts = isinstance(first, WindowRescoring) and first.counts_candidates
        later = AGGREGATIONS if self._counts else ()
        self._whole = {key: value for key, value in self._plan.body.items() if key not in later}
        self._further_ms = 0.0  # of requests after the first pass
        self._window: Sequence[Any] = ()  # a wide window takes milliseconds to free: after the response is sent

    @property
    def sections(self) -> list[Section]:
        """The sections of its items."""
        return [item.plan.section for item in self._items]

    @property
    def first_pass(self) -> dict[str, Any]:
        """The body of the first pass."""
        whole, plan = self._asked, self._plan
        groups = [] if plan.collapse is None else [plan.collapse.field]
        return bare_body(whole, [*plan.numbers, *groups], with_ids=self._named) if self._bare else whole

    @property
    def _asked(self) -> dict[str, Any]:
        """The whole request, with the names of the query's parts and of the question's parts."""
        return self._plan.asked(self._whole)

    @property
    def has_plain_answer(self) -> bool:
        """Whether the caller's own search is answered if the engine refuses the first pass."""
        unread = self._plan.numbers and "pit" in self._plan.body  # the engine is the first to say a field is no number
        return bool(self._plan.plain) and not unread

    @property
    def plain_body(self) -> Mapping[str, Any] | None:
        """The caller's own search, if it is answered where the methods cannot be applied."""
        return self._plan.plain if self._plan.plain and self._plan.section.on_error != "fail" else None

    async def complete(self, response: dict[str, Any], ms: float, refusal: Refusal | None = None) -> dict[str, Any]:
        """Return the response in the method's order, with the parts that the caller requested.

        If a request of the gateway's own is refused or loses shards, the answer is that to the caller's own search.
        """
        try:
            if refusal is not None:
                raise refusal
            return await self._complete(response, ms)
        except Refusal as refused:
            body = self.plain_body
            if body is None or not refused.of_the_body:
                raise
            plain, plain_ms = await self._search_again(body)
            if plain["_shards"]["failed"]:  # it is refused too, by a part of the shards
                raise
            reason = f"the engine refused a request of the gateway's own: {refused}"
            return self._plain(plain, ms + plain_ms, reason)
        except _LostShards as lost:
            return self._plain(lost.plain, ms + lost.ms, "a request of the gateway's own lost shards")

    async def _complete(self, response: dict[str, Any], ms: float) -> dict[str, Any]:
        since = time.perf_counter()
        try:
            page = await self._page(response, ms, since, bare=self._bare)
        except _UnknownDocuments:
            response, ms = await self._search_again(self._asked)
            since += ms / 1000
            page = await self._page(response, ms, since, bare=False)
        if page.rest is not None:
            page = await page.rest(response["hits"]["hits"])
            self._put(response, page)
        self.applied = page.summary.applied
        await self._add_groups(response, page)
        if isinstance(self._items[0], WindowRescoring) and self._items[0].plan.problem is None:
            self._gateway.load.answered(time.perf_counter() - self._started, (ms + self._further_ms) / 1000)
        if "min" in (relevance := page.summary.parts.get("relevance", {})):
            set_total(response, relevance["hits"])
        for item in self._items:
            if item.plan.reads_passages or item.plan.section.shows_map:
                await add_evidence(
                    self._gateway,
                    response,
                    item.plan,
                    item.method,
                    self._caller,
                    self._search_again,
                    since=since,
                    started=self._started,
                )
        response["ttc"]["took"]["first_pass"] = round(response["ttc"]["took"]["first_pass"] + self._further_ms, 2)
        add_took(response, self._further_ms)
        hide(response, self._plan)
        self._record(page)
        return response

    def _plain(self, response: dict[str, Any], ms: float, reason: str) -> dict[str, Any]:
        """Return the engine's response to the caller's own search, with a summary that says why."""
        method = ">".join(item.plan.section.method for item in self._items)
        log.warning("plain search answered", method=method, reason=reason)
        self.applied = False
        window = len(response["hits"]["hits"])
        summary = Summary.fell_back(method, reason, {"first_pass": ms}, window=window, scored=0)
        return {**response, "ttc": summary.as_dict()}

    def _record(self, page: RankedPage) -> None:
        """Count what the ranking took, left out and fell back from."""
        metrics = self._gateway.metrics
        for item, of_item in zip(self._items, page.items or (page,), strict=True):
            for stage, ms in of_item.summary.took.items():
                metrics.stage_seconds.labels(stage).observe(ms / 1000)
            metrics.skipped(of_item.skipped)
            if isinstance(item, WindowRescoring):
                metrics.rungs.labels(item.rung).inc()
            for event, error in of_item.fallbacks:
                record_fallback(metrics, event, item.plan.section.method, error)

    async def _require_shards(self, response: dict[str, Any], further: Mapping[str, Any]) -> None:
        """Report the shards that a request of the gateway's own has lost."""
        failed = further.get("_shards", {}).get("failed", 0)
        if failed and self._plan.plain:
            plain, ms = await self._search_again(self._plan.plain)
            if plain.get("_shards", {}).get("failed", 0) < failed:
                raise _LostShards(plain, ms)
        if further is not response:
            add_lost_shards(response, further)

    async def _page(self, response: dict[str, Any], ms: float, since: float, *, bare: bool) -> RankedPage:
        """Put a response's hits in the method's order, and read those of the page that lack their fields."""
        hits = response["hits"]["hits"]
        self._further_ms = 0.0
        if not bare:
            await self._require_shards(response, response)
        elif response["_shards"]["failed"] or await self._lacks_ids(hits):
            raise _UnknownDocuments
        assumed, read = await self._name(response) if bare and self._by_writes else (frozenset(), ())
        began = time.perf_counter()
        if len(self._items) == 1:
            page = await self._items[0].rank(hits, first_pass_ms=ms, since=since)
        else:
            page = await rank_by_items(self._plan, self._items, hits, first_pass_ms=ms, since=since)
        self._window = hits
        if bare and not are_identified(page.hits):
            raise _UnknownDocuments
        if not await self._attached.confirmed(assumed, self._caller, since=began):
            raise _UnknownDocuments
        self._attached.put_names(read, assumed)
        self._put(response, page)
        add_took(response, (time.perf_counter() - began) * 1000)
        lacking = page.hits if bare else page.candidates.among(page.hits)
        others = None if bare else hits[: self._plan.page.window]
        try:
            full, _ = await asyncio.gather(
                self._with_fields(response, lacking, page, others), self._count(response, page)
            )
        except (EngineRefusal, _LostShards):
            if not bare:
                raise
            raise _UnknownDocuments from None
        if bare and (full is None or len(full) < len(lacking)):
            raise _UnknownDocuments
        response["hits"]["hits"] = full or []
        return page

    async def _lacks_ids(self, hits: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether a bare window has no ids, and features are found by ids only."""
        if self._named or self._by_writes:
            return False
        return await self._attached.needs_ids(hits, self._caller)

    async def _name(self, response: dict[str, Any]) -> tuple[frozenset[Attachment], Sequence[dict[str, Any]]]:
        """Give bare hits of attached indices their ids, by their writes.

        Returns:
            What is to be confirmed before the ids are used, and the hits that were read for writes that are not known.
        """
        hits = response["hits"]["hits"]
        indices = {hit["_index"] for hit in hits}
        assumed = frozenset(attachment for attachment in self._by_writes if attachment.source in indices)
        unknown = self._attached.name(hits, assumed)
        if not unknown:
            return assumed, ()
        if not {hit["_index"] for hit in unknown} <= {attachment.source for attachment in assumed}:
            self._attached.examine(self._caller)
            raise _UnknownDocuments
        try:
            answer = await self._further(response, named_hits(self._plan.body, unknown))
        except (EngineRefusal, _LostShards):
            raise _UnknownDocuments from None
        read: Sequence[dict[str, Any]] = answer["hits"]["hits"]
        if self._attached.name(unknown, assumed, read):
            raise _UnknownDocuments
        return assumed, read

    def _put(self, response: dict[str, Any], page: RankedPage) -> None:
        """Put a page's hits, greatest score and summary into a response."""
        hits = response["hits"]
        hits["hits"], response["ttc"] = page.hits, page.summary.as_dict()
        # the engine's is shown where it has none: Elasticsearch with further sort keys, both without hits
        shows_own = hits.get("max_score") is not None
        if page.max_score is not None and (shows_own or (page.hits and not self._plan.by_further_keys)):
            hits["max_score"] = page.max_score

    async def _with_fields(
        self,
        response: dict[str, Any],
        lacking: Sequence[dict[str, Any]],
        page: RankedPage,
        others: Sequence[Mapping[str, Any]] | None,
    ) -> list[dict[str, Any]] | None:
        """Return the page's hits with the fields that the caller requested; see :func:`filled`."""
        if not lacking:
            return page.hits
        size = max(len(lacking), self._plan.page.fetch)
        with span("page"):
            full = await self._further(response, full_hits(self._plan.body, lacking, page.candidates.filters, size))
        return filled(page.hits, lacking, full["hits"]["hits"], others)

    async def _further(self, response: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a further request of a response."""
        answer, ms = await self._search_again(body)
        await self._require_shards(response, answer)
        self._further_ms += ms
        return answer

    async def _count(self, response: dict[str, Any], page: RankedPage) -> None:
        """Count the candidates in the total, and read the aggregations of all documents that are found."""
        if not self._counts:
            return
        candidates = page.candidates
        shown = page.summary.parts["window"] + len(candidates.hits)
        add_to_total(response, len(candidates.added), self._plan.total_up_to, least=shown)
        if self._plan.aggregates:
            with span("aggregations"):
                body = aggregated(self._plan.body, candidates.added, candidates.filters)
                answer = await self._further(response, body)
            if "aggregations" in answer:  # not of a search that names no index
                response["aggregations"] = answer["aggregations"]

    async def _add_groups(self, response: dict[str, Any], page: RankedPage) -> None:
        """Append the groups without a document in the window to those of the window, and read all inner hits."""
        plan, groups, hits = self._plan, page.groups, response["hits"]["hits"]
        if plan.collapse is None or groups is None or not plan.page.size:
            return
        beyond = rest_of_page(plan.body, plan.collapse, groups, plan.page.start, plan.page.size)
        if beyond is not None:
            further = await self._further(response, beyond)
            explain = plan.explain and page.summary.applied
            unscored = "a group without a document in the window, kept below those that have one"
            for hit, score in following(further["hits"]["hits"], groups):
                detail = {"first_pass_score": hit.get("_score")}
                hits.append(
                    shown_hit(hit, plan.section, shortest(score), None, detail, explain=explain, unscored=unscored)
                )
        if "inner_hits" in plan.collapse.body and hits:
            query = union(plan.body.get("query"), page.candidates.added, page.candidates.filters)
            answer = await self._further(response, expanded(plan.body, plan.collapse, query, hits, plan.group_fields))
            add_inner_hits(hits, plan.collapse.field, answer["hits"]["hits"])


def _without_numbers(plan: SearchPlan, items: Sequence[ItemRescoring], problem: EsTtcError) -> SearchPlan:
    """Return a plan in which the items that read numeric fields have a problem."""
    first, *later = [
        replace(one, problem=problem) if item.method is not None and item.method.fields else one
        for one, item in zip((plan, *plan.later), items, strict=True)
    ]
    return replace(first, later=tuple(later))


@dataclass
class _LostShards(Exception):
    """A request of the gateway's own has lost more shards than the caller's own search."""

    plain: dict[str, Any]
    ms: float


class _UnknownDocuments(Exception):
    """A bare window does not tell which documents the page's hits are, or one of them has changed."""

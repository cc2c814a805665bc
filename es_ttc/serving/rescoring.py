"""A rescored search: its methods begin beside the first pass, its window is ranked, then its page's hits are read."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.index.mappings.spec import HASH
from es_ttc.reranking.strategies import STRATEGIES
from es_ttc.serving.adaptive.ranking import AdaptiveReranking, AdaptiveRescoring
from es_ttc.serving.candidates.targets import TargetCache
from es_ttc.serving.cascade import Cascade, begin_cascade, items_of
from es_ttc.serving.engine import EngineRefusal, Refusal
from es_ttc.serving.features.keys import are_identified
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.request.first_pass import search_again
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.request.response import add_took, shortest
from es_ttc.serving.rescore.collapse import add_inner_hits, expanded, following, rest_of_page
from es_ttc.serving.rescore.evidence import add_evidence
from es_ttc.serving.rescore.page import shown_hit
from es_ttc.serving.rescore.plan import AGGREGATIONS, NAMED_SCORES, SearchPlan
from es_ttc.serving.rescore.query_parts import without_parts
from es_ttc.serving.rescore.relevance import calibrated_name
from es_ttc.serving.rescore.two_requests import aggregated, bare_window, can_split, filled, full_hits, union
from es_ttc.serving.rescore.window import Again, RescoredResponse, WindowRescoring
from es_ttc.serving.tracing import span


class Rescoring:
    """Starts the rescoring of searches."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._targets = TargetCache()
        self._strategies = AdaptiveReranking(gateway)

    async def begin(
        self, request: SearchRequest, item: SearchItem, plan: SearchPlan, *, encode: bool
    ) -> "RescoredSearch":
        """Check the methods of a search, start their work that does not need the first pass, and change its body.

        The query is encoded during the first pass if ``encode``, else after it.
        """
        item.params, caller = plan.params, request.caller(item)
        calibrated = await calibrated_name(
            [one.section for one in (plan, *plan.later)],
            self._gateway.tuned.relevance,
            caller,
            self._gateway.engine.as_caller(caller),
        )

        def begin(one: SearchPlan) -> WindowRescoring | AdaptiveRescoring:
            if one.problem is not None and one.section.on_error == "fail":
                raise one.problem
            if one.section.method in STRATEGIES:
                return self._strategies.begin(one.undivided_query(), caller, request.started, encode=encode)
            return WindowRescoring.begin(
                self._gateway, self._targets, request, item, one, calibrated=calibrated, encode=encode
            )

        def begin_all(whole: SearchPlan) -> WindowRescoring | AdaptiveRescoring | Cascade:
            return begin_cascade(whole, begin) if whole.later else begin(whole)

        ranking = begin_all(plan)
        if ranking.plan.numbers and caller.pit is None:  # a point in time names no indices: the window is examined
            try:
                await self._require_numbers(ranking.plan, caller)
            except MissingFeature as problem:
                ranking = begin_all(_without_numbers(plan, ranking, problem))
        bare = ranking.reads_bare_hits and not request.is_multi and can_split(ranking.plan)
        named = self._gateway.attached.expects_ids(caller)
        again = partial(search_again, self._gateway.engine, request, item)
        search = RescoredSearch(self._gateway, ranking, caller, again, request.started, bare=bare, named=named)
        item.body = search.first_pass
        if ranking.plan.is_divided:
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

    Bare hits have ids only if they are `named`, as those of an attached index are.
    """

    applied: bool = True
    """Whether every method was applied; if not, the order is the engine's own."""

    def __init__(
        self,
        gateway: Gateway,
        ranking: WindowRescoring | AdaptiveRescoring | Cascade,
        caller: Caller,
        again: Again,
        started: float,
        *,
        bare: bool,
        named: bool,
    ) -> None:
        self._plan = ranking.plan
        self._ranking = ranking
        self._gateway = gateway
        self._caller = caller
        self._again = again
        self._started = started
        self._bare = bare
        self._named = named
        first = items_of(ranking)[0]
        self._counts = isinstance(first, WindowRescoring) and first.counts_candidates
        later = AGGREGATIONS if self._counts else ()
        self._whole = {key: value for key, value in self._plan.body.items() if key not in later}
        self._kept: Sequence[Any] = ()  # a wide window takes milliseconds to free: after the response is sent

    @property
    def first_pass(self) -> dict[str, Any]:
        """The body of the first pass."""
        whole = self._asked
        return bare_window(self._plan, whole, named=self._named) if self._bare else whole

    @property
    def _asked(self) -> dict[str, Any]:
        """The whole request, with the names of the query's parts if it is divided."""
        return self._whole if self._plan.parts is None else self._plan.parts.asked(self._whole)

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
            plain, plain_ms = await self._again(body)
            if plain["_shards"]["failed"]:  # it is refused too, by a part of the shards
                raise
            reason = f"the engine refused a request of the gateway's own: {refused}"
            return self._plain(plain, ms + plain_ms, reason)
        except _LostShards as lost:
            return self._plain(lost.plain, ms + lost.ms, "a request of the gateway's own lost shards")

    async def _complete(self, response: dict[str, Any], ms: float) -> dict[str, Any]:
        began = time.perf_counter()
        ranked, ranked_ms = await self._ranked_bare(response, ms) if self._bare else (None, None)
        if ranked is None:
            if self._bare:
                response, ms = await self._again(self._asked)
            ranked = await self._ranked_whole(response, ms, ranked_ms)
        if ranked.rest is not None:
            ranked = await ranked.rest()
        self.applied = ranked.applied
        await self._add_groups(response, ranked)
        if "min" in (relevance := response["ttc"].get("relevance", {})):
            set_total(response, relevance["hits"])
        for one in items_of(self._ranking):
            if one.plan.reads_passages or one.plan.section.shows_map:
                await add_evidence(
                    self._gateway, response, one.plan, one.method, self._caller, since=began, started=self._started
                )
        hide(response, self._plan)
        return response

    def _plain(self, response: dict[str, Any], ms: float, reason: str) -> dict[str, Any]:
        """Return the engine's response to the caller's own search, with a summary that says why."""
        method = ">".join(one.plan.section.method for one in items_of(self._ranking))
        log.warning("plain search answered", method=method, reason=reason)
        self.applied = False
        summary = {"method": method, "applied": False, "window": len(response["hits"]["hits"]), "scored": 0}
        return {**response, "ttc": {**summary, "reason": reason, "took": {"first_pass": round(ms, 2)}}}

    async def _require_shards(self, response: dict[str, Any], further: Mapping[str, Any]) -> None:
        """Report the shards that a request of the gateway's own has lost."""
        failed = further.get("_shards", {}).get("failed", 0)
        if failed and self._plan.plain:
            plain, ms = await self._again(self._plan.plain)
            if plain.get("_shards", {}).get("failed", 0) < failed:
                raise _LostShards(plain, ms)
        if further is not response:
            add_lost_shards(response, further)

    async def _ranked_whole(self, response: dict[str, Any], ms: float, ranked_ms: float | None) -> RescoredResponse:
        """Rank a window of complete hits, and read the candidates on its page."""
        await self._require_shards(response, response)
        window = response["hits"]["hits"][: self._plan.page.window]
        ranked = await self._ranking.rank(response, ms, self._caller, ranked_ms=ranked_ms)
        joined = ranked.joined.among(response["hits"]["hits"])
        hits, _ = await asyncio.gather(self._filled(response, joined, ranked, window), self._count(response, ranked))
        response["hits"]["hits"] = hits or []
        return ranked

    async def _ranked_bare(self, response: dict[str, Any], ms: float) -> tuple[RescoredResponse | None, float | None]:
        """Rank a bare window and read the hits of its page.

        Returns:
            The result, None if the whole request must be sent again; and the time of the ranking, None if there was
            none.
        """
        window = response["hits"]["hits"]
        lacks_ids = not self._named and await self._gateway.attached.needs_ids(window, self._caller)
        if response["_shards"]["failed"] or lacks_ids:
            return None, None
        began = time.perf_counter()
        ranked = await self._ranking.rank(response, ms, self._caller)
        ranked_ms = (time.perf_counter() - began) * 1000
        self._kept = window
        page = response["hits"]["hits"]
        if not are_identified(page):
            return None, ranked_ms
        try:
            hits, _ = await asyncio.gather(self._filled(response, page, ranked), self._count(response, ranked))
        except (EngineRefusal, _LostShards):
            return None, ranked_ms
        if hits is None or len(hits) < len(page):  # a document has changed
            return None, ranked_ms
        response["hits"]["hits"] = hits
        return ranked, ranked_ms

    async def _filled(
        self,
        response: dict[str, Any],
        bare: list[dict[str, Any]],
        ranked: RescoredResponse,
        others: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[dict[str, Any]] | None:
        """Return the response's page with complete hits in place of bare ones; see :func:`filled`."""
        page: list[dict[str, Any]] = response["hits"]["hits"]
        if not bare:
            return page
        size = max(len(bare), self._plan.page.fetch)
        with span("page"):
            full = await self._further(response, full_hits(self._plan.body, bare, ranked.joined.filters, size))
        return filled(page, bare, full["hits"]["hits"], others)

    async def _further(self, response: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a further request of a response."""
        answer, ms = await self._again(body)
        await self._require_shards(response, answer)
        add_to_first_pass(response, ms)
        return answer

    async def _count(self, response: dict[str, Any], ranked: RescoredResponse) -> None:
        """Count the candidates in the total, and read the aggregations of all documents that are found."""
        if not self._counts:
            return
        joined = ranked.joined
        shown = response["ttc"]["window"] + len(joined.hits)
        add_to_total(response, len(joined.added), self._plan.total_up_to, least=shown)
        if self._plan.aggregates:
            with span("aggregations"):
                answer = await self._further(response, aggregated(self._plan.body, joined.added, joined.filters))
            if "aggregations" in answer:  # not of a search that names no index
                response["aggregations"] = answer["aggregations"]

    async def _add_groups(self, response: dict[str, Any], ranked: RescoredResponse) -> None:
        """Append the groups without a document in the window to those of the window, and read all inner hits."""
        plan, groups = self._plan, ranked.groups
        if plan.collapse is None or groups is None or not plan.page.size:
            return
        beyond = rest_of_page(plan.body, plan.collapse, groups, plan.page.start, plan.page.size)
        page = response["hits"]["hits"]
        if beyond is not None:
            further = await self._further(response, beyond)
            explain = plan.explain and response["ttc"]["applied"]
            unscored = "a group without a document in the window, kept below those that have one"
            for hit, score in following(further["hits"]["hits"], groups):
                detail = {"first_pass_score": hit.get("_score")}
                page.append(
                    shown_hit(hit, plan.section, shortest(score), None, detail, explain=explain, unscored=unscored)
                )
        if "inner_hits" in plan.collapse.body and page:
            query = union(plan.body.get("query"), ranked.joined.added, ranked.joined.filters)
            answer = await self._further(response, expanded(plan.body, plan.collapse, query, page, plan.group_fields))
            add_inner_hits(page, plan.collapse.field, answer["hits"]["hits"])


def _without_numbers(
    plan: SearchPlan, ranking: WindowRescoring | AdaptiveRescoring | Cascade, problem: EsTtcError
) -> SearchPlan:
    """Return a plan in which the items that read numeric fields have a problem."""
    first, *later = [
        replace(one, problem=problem) if item.method is not None and item.method.fields else one
        for one, item in zip((plan, *plan.later), items_of(ranking), strict=True)
    ]
    return replace(first, later=tuple(later))


def add_to_first_pass(response: dict[str, Any], ms: float) -> None:
    """Add the time of a further request to that of the first pass."""
    response["ttc"]["took"]["first_pass"] = round(response["ttc"]["took"]["first_pass"] + ms, 2)
    add_took(response, ms)


def add_to_total(response: Mapping[str, Any], count: int, up_to: int | None, *, least: int) -> None:
    """Count further documents in a response's total, up to where the engine counts; None if it counts all.

    The total is at least ``least``: a search that ended early has not counted all documents that the query matches.
    """
    hits = response["hits"]
    total = hits.get("total")
    if isinstance(total, int):
        hits["total"] = max(total + count, least) if total >= 0 else total  # -1 if it is not counted
    elif total is not None and total["relation"] == "eq":
        whole = max(total["value"] + count, least)
        if up_to is not None and whole > up_to:
            hits["total"] = {"value": max(total["value"], up_to), "relation": "gte"}
        else:
            hits["total"] = {"value": whole, "relation": "eq"}


def set_total(response: Mapping[str, Any], count: int) -> None:
    """Set a response's total, if the engine has counted; without hits there is no greatest score."""
    hits = response["hits"]
    if not count:
        hits["max_score"] = None
    if isinstance(hits.get("total"), int):
        hits["total"] = count if hits["total"] >= 0 else hits["total"]
    elif hits.get("total") is not None:
        hits["total"] = {"value": count, "relation": "eq"}


def add_lost_shards(response: dict[str, Any], further: Mapping[str, Any]) -> None:
    """Report the shards that did not answer a further request, or its timeout, as the engine reports them."""
    shards = further.get("_shards", {})
    if shards.get("failed", 0) > response.get("_shards", {}).get("failed", 0):
        response["_shards"] = shards
    if further.get("timed_out"):
        response["timed_out"] = True


def hide(response: Mapping[str, Any], plan: SearchPlan) -> None:
    """Remove from hits, and from options of completion suggesters, the parts that only the gateway requested."""
    suggestions = [entry for entries in response.get("suggest", {}).values() for entry in entries]
    options = [option for entry in suggestions for option in entry.get("options", ()) if "_index" in option]
    for hit in response["hits"]["hits"] if plan.by_further_keys else ():
        hit["sort"] = [hit["_score"], *(hit.get("sort") or ())[1:]]
    for hit in [*response["hits"]["hits"], *options]:
        without_parts(hit, with_scores=plan.shows_named_scores)
        fields = hit.get("fields")
        if fields is not None:
            for name in plan.hidden:
                fields.pop(name, None)
            if not fields:
                del hit["fields"]
        highlight = hit.get("highlight")
        if highlight is not None and highlight.pop(HASH, None) is not None and not highlight:
            del hit["highlight"]
        if plan.hide_ids:
            for name in ("_id", "_routing"):
                hit.pop(name, None)


@dataclass
class _LostShards(Exception):
    """A request of the gateway's own has lost more shards than the caller's own search."""

    plain: dict[str, Any]
    ms: float

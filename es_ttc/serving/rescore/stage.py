"""The stage of the `rescore` hook: parse each search with a section, and put the engine's response in order."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import EsTtcError
from es_ttc.index.mappings.spec import HASH
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.keys import content_numbers, marks_of, with_contents
from es_ttc.serving.features.numbers import FieldsReader, FieldTypes
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.http.caller_limits import CallerLimits
from es_ttc.serving.http.limits import RequestLimits
from es_ttc.serving.logs import log
from es_ttc.serving.pool import Offload
from es_ttc.serving.rescore.candidates import has_twins
from es_ttc.serving.rescore.cascade import begin_cascade
from es_ttc.serving.rescore.collapse import WindowGroups, following, rest_of_page
from es_ttc.serving.rescore.page import shortest, shown_hit
from es_ttc.serving.rescore.page_evidence import PageEvidence
from es_ttc.serving.rescore.plan import SearchPlan, plan_search
from es_ttc.serving.rescore.rescoring import Rescoring
from es_ttc.serving.rescore.response import NONE_JOINED, RescoredResponse
from es_ttc.serving.rescore.two_requests import bare_window, can_split, filled, joined_hits, page_hits, with_joined
from es_ttc.serving.search.accepted_callers import AcceptedCallers
from es_ttc.serving.search.engine import EngineRefusal, ItemRefusal
from es_ttc.serving.search.request import SearchItem, SearchRequest
from es_ttc.serving.search.response import add_took
from es_ttc.serving.search.stage import Answered, Completion
from es_ttc.serving.tracing import span

_BEGUN_AT_ONCE = 20  # searches of one `_msearch`, before the event loop runs other tasks


class Rescorers(Protocol):
    """The methods that score a window; see :class:`es_ttc.serving.rescore.window.WindowRescorers`."""

    def begin(self, request: SearchRequest, item: SearchItem, plan: SearchPlan, *, encode: bool) -> Rescoring:
        """Check a request, and start its work that does not need the first pass."""
        ...


class Strategies(Protocol):
    """The methods that rerank under a budget; see :class:`es_ttc.serving.adaptive.ranking.AdaptiveReranking`."""

    def begin(self, plan: SearchPlan, started: float, *, encode: bool) -> Rescoring | None:
        """Check a request, and start its work that does not need the first pass; None if its method is no strategy."""
        ...


class RescoreStage:
    """Rescores first passes.

    Args:
        rescorers: The methods that score a window.
        strategies: The methods that rerank under a budget.
        attached: Finds the features of attached indices.
        evidence: Adds passages and maps to hits.
        numbers: Refuses targets without a numeric field that a method reads.
        accepted: The callers and targets that the engine has answered recently.
        callers: Limits the windows of each caller.
        limits: Limits of requests.
        offload: Runs the parsing of long bodies.
        max_window: Maximum window.
    """

    def __init__(
        self,
        rescorers: Rescorers,
        strategies: Strategies,
        attached: AttachedFeatureLocator,
        evidence: PageEvidence,
        numbers: FieldTypes,
        accepted: AcceptedCallers,
        callers: CallerLimits,
        limits: RequestLimits,
        offload: Offload,
        *,
        max_window: int,
    ) -> None:
        self._rescorers = rescorers
        self._strategies = strategies
        self._attached = attached
        self._evidence = evidence
        self._numbers = numbers
        self._accepted = accepted
        self._callers = callers
        self._limits = limits
        self._offload = offload
        self._max_window = max_window

    async def before(self, request: SearchRequest) -> None:
        """Replace the body of each search with a section, and start to encode the queries."""
        plans = await self._offload.run(request.size, self._plans, request)
        if any(request.is_multi or isinstance(plan, SearchPlan) for _, plan in plans):
            request.require_json()
        for number, (item, plan) in enumerate(plans, 1):
            try:
                if isinstance(plan, EsTtcError):
                    raise plan
                await self._begin(request, item, plan)
            except EsTtcError as error:
                item.error = error
            if number % _BEGUN_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _plans(self, request: SearchRequest) -> list[tuple[SearchItem, SearchPlan | EsTtcError]]:
        """Return the plans of the searches with a section, or their errors."""
        plans: list[tuple[SearchItem, SearchPlan | EsTtcError]] = []
        for item, body in request.open_items():
            try:
                plan = plan_search(body, item.params, max_window=self._max_window, limits=self._limits)
            except EsTtcError as error:
                plans.append((item, error))
            else:
                plans += [] if plan is None else [(item, plan)]
        return plans

    async def _begin(self, request: SearchRequest, item: SearchItem, plan: SearchPlan) -> None:
        self._callers.windows(request.incoming, 1 + len(plan.later))
        known = (request.incoming.headers, request.target(item)) in self._accepted
        item.params = plan.params

        def begin(one: SearchPlan) -> Rescoring:
            adaptive = self._strategies.begin(one, request.started, encode=known)
            return adaptive or self._rescorers.begin(request, item, one, encode=known)

        rescoring: Rescoring = begin_cascade(plan, begin) if plan.later else begin(plan)
        plan = rescoring.plan
        if plan.numbers:
            await self._require_numbers(plan, request.caller(item))
        in_two_steps = (
            rescoring.reads_bare_hits
            and not request.is_multi
            and can_split(plan)
            and not self._attached.expects_ids(request.caller(item))
        )
        item.body = bare_window(plan) if in_two_steps else plan.body
        completion = RescoreCompletion(plan, rescoring, self._attached, self._evidence, in_two_steps=in_two_steps)
        item.completions.append(completion)
        unread = plan.numbers and "pit" in plan.body  # the engine is the first to say that a field is no number
        item.has_plain_answer = bool(plan.plain) and not unread

    async def _require_numbers(self, plan: SearchPlan, caller: Caller) -> None:
        """Refuse a search whose target lacks a numeric field that the method reads.

        Raises:
            MissingFeature: It lacks one, and the search does not define it.
        """
        if caller.pit is not None:  # names no indices: the window is examined
            return
        defined = {name for part in ("derived", "runtime_mappings") for name in plan.body.get(part) or ()}
        fields = [name for name in plan.numbers if name not in defined]
        await self._numbers.require(fields, FieldsReader.of_method(plan.section.method), caller)


class RescoreCompletion(Completion):
    """Puts one search's response in order.

    Args:
        plan: The parsed search.
        rescoring: Ranks the hits.
        attached: Finds the features of attached indices.
        evidence: Adds passages and maps to hits.
        in_two_steps: Whether the response is a bare window, so that the page's hits are requested afterwards.
    """

    def __init__(
        self,
        plan: SearchPlan,
        rescoring: Rescoring,
        attached: AttachedFeatureLocator,
        evidence: PageEvidence,
        *,
        in_two_steps: bool,
    ) -> None:
        self._plan = plan
        self._rescoring = rescoring
        self._attached = attached
        self._evidence = evidence
        self._in_two_steps = in_two_steps
        self._groups: WindowGroups | None = None
        self._joined = NONE_JOINED
        self._rest: Callable[[], Awaitable[RescoredResponse]] | None = None
        self._kept: Sequence[Any] = ()  # a wide window takes milliseconds to free: after the response is sent

    async def complete(self, answered: Answered) -> None:
        """Put the response in the method's order, with the parts that the caller requested.

        If a request of the gateway's own is refused or loses shards, the answer is that to the caller's own search.
        """
        try:
            if answered.refusal is not None:
                raise answered.refusal
            await self._complete(answered)
        except (EngineRefusal, ItemRefusal) as refusal:
            if self._plan.section.on_error == "fail" or not (self._plan.plain and refusal.of_the_body):
                raise
            plain, ms = await answered.again(self._plan.plain)
            if plain["_shards"]["failed"]:  # it is refused too, by a part of the shards
                raise
            reason = f"the engine refused a request of the gateway's own: {refusal.reason}"
            self._answer_plainly(answered, plain, ms, reason)
        except _LostShards as lost:
            self._answer_plainly(answered, *lost.plain, "a request of the gateway's own lost shards")

    async def _complete(self, answered: Answered) -> None:
        caller, began = answered.caller, time.perf_counter()
        if not self._in_two_steps:
            await self._rank_whole(answered)
        elif not await self._filled(answered, caller):
            answered.response, answered.ms = await answered.again(self._plan.body)
            await self._rank_whole(answered)
        if self._rest is not None:
            ranked = await self._rest()
            self.applied, self._groups = ranked.applied, ranked.groups
        beyond = self._groups_beyond()
        if beyond is not None:
            groups, ms = await answered.again(beyond)
            await self._require_shards(answered, groups)
            self._add_groups(answered.response, groups["hits"]["hits"], ms)
        for one in self._rescoring.items:
            await self._evidence.add(answered, one.plan, one.method, began)
        hide(answered.response, self._plan)

    def _answer_plainly(self, answered: Answered, response: dict[str, Any], ms: float, reason: str) -> None:
        """Answer with the engine's response to the caller's own search."""
        method = ">".join(one.plan.section.method for one in self._rescoring.items)
        log.warning("plain search answered", method=method, reason=reason)
        self.applied = False
        took = {"first_pass": round(answered.ms + ms, 2)}
        summary = {"method": method, "applied": False, "window": len(response["hits"]["hits"]), "scored": 0}
        answered.response = {**response, "ttc": {**summary, "reason": reason, "took": took}}

    async def _require_shards(self, answered: Answered, response: Mapping[str, Any]) -> None:
        """Report the shards that a request of the gateway's own has lost.

        Raises:
            _LostShards: The caller's own search loses fewer.
        """
        failed = response.get("_shards", {}).get("failed", 0)
        if failed and self._plan.plain:
            plain, ms = await answered.again(self._plan.plain)
            if plain.get("_shards", {}).get("failed", 0) < failed:
                raise _LostShards((plain, ms))
        if response is not answered.response:
            add_lost_shards(answered.response, response)

    async def _rank(self, answered: Answered) -> None:
        ranked = await self._rescoring.rank(answered)
        self.applied, self._groups, self._joined = ranked.applied, ranked.groups, ranked.joined
        self._rest = ranked.rest

    async def _rank_whole(self, answered: Answered) -> None:
        """Rank a window of complete hits, and read the candidates on its page."""
        await self._require_shards(answered, answered.response)
        await self._rank(answered)
        page = answered.response["hits"]["hits"]
        joined = self._joined.among(page)
        if not joined:
            return
        filters, named = self._joined.filters, self._joined.named
        with span("page"):
            size = len(joined) if named else self._plan.page.fetch
            full, ms = await answered.again(joined_hits(self._plan.body, joined, filters, size, named=named))
        await self._require_shards(answered, full)
        answered.response["hits"]["hits"] = with_joined(page, joined, full["hits"]["hits"], named=named)
        add_to_first_pass(answered.response, ms)

    async def _filled(self, answered: Answered, caller: Caller) -> bool:
        """Rank a bare window and read the hits of its page; return False if the whole request must be sent again."""
        response = answered.response
        window = response["hits"]["hits"]
        if response["_shards"]["failed"] or await self._attached.needs_ids(window, caller):
            return False
        contents = content_numbers(window)  # before scoring empties the processor's caches
        began = time.perf_counter()
        await self._rank(answered)
        spent = (time.perf_counter() - began) * 1000
        filled_in = await self._page_filled(answered, window, contents)
        answered.attempt_ms = None if filled_in else spent
        return filled_in

    async def _page_filled(
        self, answered: Answered, window: Sequence[dict[str, Any]], contents: NDArray[np.int64]
    ) -> bool:
        """Read the hits of a bare page; return False if only the whole request tells which documents they are."""
        response = answered.response
        self._kept = window
        page = response["hits"]["hits"]
        if not page:
            return True
        if self._joined.named:
            return False
        contents = np.concatenate((contents, content_numbers(self._joined.hits)))
        alike = with_contents([*window, *self._joined.hits], contents, page)
        marks = [mark for mark in marks_of(alike) if mark is not None]
        if self._joined.among(page) and has_twins(alike):
            return False  # only ids tell which of them joined
        by_hit = {id(hit): mark for hit, mark in zip(alike, marks, strict=True)}
        marks_of_page = [by_hit[id(hit)] for hit in page if id(hit) in by_hit]
        if len(marks_of_page) < len(page):
            return False
        try:
            filters = self._joined.filters if self._joined.among(page) else None
            with span("page"):
                full, ms = await answered.again(page_hits(self._plan.body, marks_of_page, len(marks), filters))
        except EngineRefusal:
            return False
        hits = None if full["_shards"]["failed"] else filled(page, marks_of_page, full["hits"]["hits"])
        if hits is None:
            return False
        response["hits"]["hits"] = hits
        add_to_first_pass(response, ms)
        return True

    def _groups_beyond(self) -> Mapping[str, Any] | None:
        """Return the request for the page's groups without a document in the window, or None if there are none."""
        plan = self._plan
        if plan.collapse is None or self._groups is None or not plan.page.size:
            return None
        return rest_of_page(plan.body, plan.collapse, self._groups, plan.page.start, plan.page.size)

    def _add_groups(self, response: dict[str, Any], beyond: Sequence[dict[str, Any]], ms: float) -> None:
        """Append the engine's groups to those of the window."""
        plan, section, groups = self._plan, self._plan.section, self._groups
        if plan.collapse is None or groups is None:
            return
        explain = plan.explain and response["ttc"]["applied"]
        unscored = "a group without a document in the window, kept below those that have one"
        for hit, score in following(beyond, plan.collapse.field, groups, plan.page.start, plan.page.size):
            detail = {"first_pass_score": hit.get("_score")}
            shown = shown_hit(hit, section, shortest(score), None, detail, explain=explain, unscored=unscored)
            response["hits"]["hits"].append(shown)
        add_to_first_pass(response, ms)


def add_to_first_pass(response: dict[str, Any], ms: float) -> None:
    """Add the time of a further request to that of the first pass."""
    response["ttc"]["took"]["first_pass"] = round(response["ttc"]["took"]["first_pass"] + ms, 2)
    add_took(response, ms)


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
    for hit in [*response["hits"]["hits"], *options]:
        for name in plan.hidden_marks:
            hit.pop(name, None)
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


class _LostShards(Exception):
    """A request of the gateway's own has lost more shards than the caller's own search.

    Args:
        plain: The engine's response to the latter, and its time in milliseconds.
    """

    def __init__(self, plain: tuple[dict[str, Any], float]) -> None:
        super().__init__()
        self.plain = plain

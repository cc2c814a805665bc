"""A rescored search after the first pass: its window is ranked, then the hits of its page are read."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from es_ttc.serving.adaptive.ranking import AdaptiveRescoring
from es_ttc.serving.features.attached import AttachedFeatureLocator
from es_ttc.serving.features.keys import content_numbers, marks_of, with_contents
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.rescore.cascade import Cascade, items_of
from es_ttc.serving.rescore.collapse import following, rest_of_page
from es_ttc.serving.rescore.evidence import PageEvidence
from es_ttc.serving.rescore.page import shortest, shown_hit
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.response import RescoredResponse
from es_ttc.serving.rescore.two_requests import filled, joined_hits, page_hits, with_joined
from es_ttc.serving.rescore.window import WindowRescoring
from es_ttc.serving.search.engine import EngineRefusal
from es_ttc.serving.search.response import add_took
from es_ttc.serving.tracing import span

Again = Callable[[Mapping[str, Any]], Awaitable[tuple[dict[str, Any], float]]]
"""Sends another body of the search; returns the engine's response, and its time in ms."""


class RescoredSearch:
    """One search whose window is rescored.

    Attributes:
        applied: Whether every method was applied; if not, the order is the engine's own.

    Args:
        plan: The parsed search.
        ranking: Ranks the window.
        attached: Finds the features of attached indices.
        evidence: Adds passages and maps to hits.
        caller: The request context with which documents are read.
        again: Sends further requests.
        started: `time.perf_counter` when the request arrived.
        bare: Whether the first pass returns hits without stored fields, so that the page's are requested afterwards.
    """

    applied: bool = True

    def __init__(
        self,
        plan: SearchPlan,
        ranking: WindowRescoring | AdaptiveRescoring | Cascade,
        attached: AttachedFeatureLocator,
        evidence: PageEvidence,
        caller: Caller,
        again: Again,
        started: float,
        *,
        bare: bool,
    ) -> None:
        self._plan = plan
        self._ranking = ranking
        self._attached = attached
        self._evidence = evidence
        self._caller = caller
        self._again = again
        self._started = started
        self._bare = bare
        self._kept: Sequence[Any] = ()  # a wide window takes milliseconds to free: after the response is sent

    async def complete(self, response: dict[str, Any], ms: float) -> dict[str, Any]:
        """Return the response in the method's order, with the parts that the caller requested."""
        began = time.perf_counter()
        ranked = await self._ranked_bare(response, ms) if self._bare else None
        if ranked is None:
            if self._bare:
                response, ms = await self._again(self._plan.body)
            ranked = await self._ranked_whole(response, ms)
        if ranked.rest is not None:
            ranked = await ranked.rest()
        self.applied = ranked.applied
        await self._add_groups(response, ranked)
        for one in items_of(self._ranking):
            await self._evidence.add(response, one.plan, one.method, self._caller, since=began, started=self._started)
        hide(response["hits"]["hits"], self._plan)
        return response

    async def _ranked_whole(self, response: dict[str, Any], ms: float) -> RescoredResponse:
        """Rank a window of complete hits, and read the candidates on its page."""
        ranked = await self._ranking.rank(response, ms, self._caller)
        page = response["hits"]["hits"]
        joined = ranked.joined.among(page)
        if not joined:
            return ranked
        filters, named = ranked.joined.filters, ranked.joined.named
        with span("page"):
            full, page_ms = await self._again(joined_hits(self._plan.body, joined, filters, named=named))
        add_lost_shards(response, full)
        response["hits"]["hits"] = with_joined(page, joined, full["hits"]["hits"], named=named)
        add_to_first_pass(response, page_ms)
        return ranked

    async def _ranked_bare(self, response: dict[str, Any], ms: float) -> RescoredResponse | None:
        """Rank a bare window and read the hits of its page; return None if the whole request must be sent again."""
        window = response["hits"]["hits"]
        if await self._attached.needs_ids(window, self._caller):
            return None
        contents = content_numbers(window)  # before scoring empties the processor's caches
        ranked = await self._ranking.rank(response, ms, self._caller)
        self._kept = window
        page = response["hits"]["hits"]
        if not page:
            return ranked
        if ranked.joined.named:
            return None
        contents = np.concatenate((contents, content_numbers(ranked.joined.hits)))
        alike = with_contents([*window, *ranked.joined.hits], contents, page)
        marks = [mark for mark in marks_of(alike) if mark is not None]
        by_hit = {id(hit): mark for hit, mark in zip(alike, marks, strict=True)}
        marks_of_page = [by_hit[id(hit)] for hit in page if id(hit) in by_hit]
        if len(marks_of_page) < len(page):
            return None
        try:
            filters = ranked.joined.filters if ranked.joined.among(page) else None
            with span("page"):
                full, page_ms = await self._again(page_hits(self._plan.body, marks_of_page, len(marks), filters))
        except EngineRefusal:
            return None
        hits = None if full["_shards"]["failed"] else filled(page, marks_of_page, full["hits"]["hits"])
        if hits is None:
            return None
        response["hits"]["hits"] = hits
        add_to_first_pass(response, page_ms)
        return ranked

    async def _add_groups(self, response: dict[str, Any], ranked: RescoredResponse) -> None:
        """Append the engine's groups without a document in the window to those of the window."""
        plan, groups = self._plan, ranked.groups
        if plan.collapse is None or groups is None or not plan.page.size:
            return
        beyond = rest_of_page(plan.body, plan.collapse, groups, plan.page.start, plan.page.size)
        if beyond is None:
            return
        further, ms = await self._again(beyond)
        add_lost_shards(response, further)
        explain = plan.explain and response["ttc"]["applied"]
        unscored = "a group without a document in the window, kept below those that have one"
        found = further["hits"]["hits"]
        for hit, score in following(found, plan.collapse.field, groups, plan.page.start, plan.page.size):
            detail = {"first_pass_score": hit.get("_score")}
            shown = shown_hit(hit, plan.section, shortest(score), None, detail, explain=explain, unscored=unscored)
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


def hide(hits: Sequence[dict[str, Any]], plan: SearchPlan) -> None:
    """Remove from hits the parts that only the gateway requested, in place."""
    for hit in hits:
        for name in plan.hidden_marks:
            hit.pop(name, None)
        fields = hit.get("fields")
        if fields is not None:
            for name in plan.hidden:
                fields.pop(name, None)
            if not fields:
                del hit["fields"]
        if plan.hide_ids:
            hit.pop("_id", None)

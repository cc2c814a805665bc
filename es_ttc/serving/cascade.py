"""Several items with a section in one `rescore` list: each reorders the first documents of the order before it.

An item gets the hits as if a first pass had returned them: in the order before it, with the scores before it. The
documents after its window keep their order, below the window. One clock runs over all items. An item that fails leaves
the order as it is, and its part of the summary says so; the items after it still run.

Items that read bare hits run before the hits are complete. Where a later one needs ids or texts, the hits up to the end
of its window and of the page are completed first, and the rest runs afterwards.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.response import shortest
from es_ttc.serving.rescore.collapse import WindowGroups
from es_ttc.serving.rescore.page import RankedPage
from es_ttc.serving.rescore.ranking import below
from es_ttc.serving.rescore.window import WindowRescoring
from es_ttc.serving.strategies.rescoring import StrategyRescoring
from es_ttc.serving.summary import Summary
from es_ttc.vectors.tokens import Float32

_FIRST_PASS, _RELEVANCE = "first_pass", "relevance"
ItemRescoring = WindowRescoring | StrategyRescoring
"""The rescoring of one item of a list."""


def begin_items(
    plan: SearchPlan, begin: Callable[[SearchPlan], ItemRescoring]
) -> tuple[SearchPlan, tuple[ItemRescoring, ...]]:
    """Check several items of a search, and start their work that does not need the first pass; return the plan too.

    The page of the first item is the whole first pass.
    """
    later = [begin(one) for one in plan.later]
    plan = plan.reading([name for item in later for name in item.plan.numbers])
    first = begin(replace(plan, page=replace(plan.page, start=0, size=plan.page.fetch)))
    return replace(first.plan, page=plan.page), (first, *later)


async def rank_by_items(
    plan: SearchPlan,
    items: Sequence[ItemRescoring],
    hits: Sequence[dict[str, Any]],
    *,
    first_pass_ms: float,
    since: float,
) -> RankedPage:
    """Return the page of some hits in the order of several items, up to the first one that needs complete hits.

    ``since`` is `time.perf_counter` when scoring began.
    """
    return await _Run(plan, items, since).begin(hits, first_pass_ms)


@dataclass(slots=True)
class _Run:
    """One run of the items over the hits of a search.

    Attributes:
        plan: The whole search, with its page.
        hits: The hits in the order of the items that have run.
        pages: The results of the items that have run.
        totals: Milliseconds that each item after the first one took.
        max_score: The greatest score; None if the engine's own stays.
        groups: The groups of the first item's window, if the request collapses.
        after: The score of the first hit after those that were kept, or None.
    """

    plan: SearchPlan
    items: Sequence[ItemRescoring]
    since: float
    hits: list[dict[str, Any]] = field(default_factory=list)
    pages: list[RankedPage] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    max_score: float | None = None
    groups: WindowGroups | None = None
    after: np.float32 | None = None

    async def begin(self, hits: Sequence[dict[str, Any]], first_pass_ms: float) -> RankedPage:
        """Run the first item, and those that need no complete hits."""
        items, page = self.items, self.plan.page
        origins = {id(hit): (rank, hit.get("_score")) for rank, hit in enumerate(hits, 1)}
        ranked = await items[0].rank(hits, first_pass_ms=first_pass_ms, since=self.since)
        self.pages.append(ranked)
        self.hits, self.max_score, self.groups = ranked.hits, ranked.max_score, ranked.groups
        if any(item.plan.section.detail for item in items):
            for hit in self.hits:
                _begin_details(hit, origins.get(id(hit), (None, None)), items[0].plan.section.method)
        place = await self._run(1, lambda one: one.reads_bare_hits)
        if place == len(items):
            return self._result(self.hits[page.ranks])
        completed = max(page.start + page.size, items[place].plan.page.window)
        if len(self.hits) > completed:
            self.after = _scores(self.hits[completed : completed + 1])[0]

        async def rest(complete: list[dict[str, Any]]) -> RankedPage:
            self.hits = complete
            await self._run(place, lambda _: True)
            return self._result(self.hits[page.ranks])

        return replace(self._result(self.hits[:completed]), rest=rest)

    async def _run(self, place: int, may_run: Callable[[ItemRescoring], bool]) -> int:
        """Run the items from a place on, as long as they may run; return the place of the next one."""
        while place < len(self.items) and may_run(self.items[place]):
            await self._step(self.items[place])
            place += 1
        return place

    async def _step(self, item: ItemRescoring) -> None:
        """Put the first hits in the order of one more item."""
        plan, began = item.plan, time.perf_counter()
        head, tail = self.hits[: plan.page.window], self.hits[plan.page.window :]
        before = {id(hit): (rank, hit.get("_score"), hit.pop("_ttc", None)) for rank, hit in enumerate(head, 1)}
        ranked = await item.rank(head, first_pass_ms=None, since=self.since)
        for hit in ranked.hits:
            rank, score, details = before[id(hit)]
            own = hit.pop("_ttc", None)
            if details is not None:
                hit["_ttc"] = details if own is None else _with_item(details, plan.section.method, rank, score, own)
        if ranked.summary.applied and ranked.hits:
            self._lower(tail, _scores(ranked.hits)[-1], plan)
            self.max_score = self.max_score if ranked.max_score is None else ranked.max_score
        self.hits = [*ranked.hits, *tail]
        self.pages.append(ranked)
        self.totals.append((time.perf_counter() - began) * 1000)

    def _lower(self, tail: Sequence[dict[str, Any]], floor: np.float32, plan: SearchPlan) -> None:
        """Scale the scores after a window down, in place, so that scores do not rise there."""
        following = _scores(tail)
        if len(following):
            first = following[0]
        else:
            first = self.after if self.after is not None else (floor if self.groups is None else self.groups.floor)
        lowered = below(following, floor) if len(following) else following
        factor = np.float32(1) if first <= floor else np.float32(floor / first)
        for hit, old, score in zip(tail, following, lowered, strict=True):
            if score != old:
                hit["_score"] = shortest(score)
                if plan.explain:
                    description = f"ttc [{plan.section.method}]: outside the item's window, kept below it"
                    details = [hit["_explanation"]] if "_explanation" in hit else []
                    hit["_explanation"] = {"value": hit["_score"], "description": description, "details": details}
        if self.after is not None:
            self.after = min(self.after * factor, floor)
        if self.groups is not None:
            lowest = min(self.groups.floor * factor, floor)
            self.groups = replace(self.groups, factor=self.groups.factor * factor, floor=lowest)

    def _result(self, hits: list[dict[str, Any]]) -> RankedPage:
        """Return the result of the items that have run."""
        first = self.pages[0]
        return RankedPage(hits, self._summary(), self.max_score, self.groups, first.candidates, items=tuple(self.pages))

    def _summary(self) -> Summary:
        """Return the summary of the search: what holds for all items, and the summary of each."""
        first, *later = summaries = [page.summary for page in self.pages]
        took: dict[str, float] = {}
        for summary in summaries:
            for stage, ms in summary.took.items():
                took[stage] = took.get(stage, 0.0) + ms
        parts = {key: value for key, value in first.parts.items() if key in ("window", _RELEVANCE)}
        if any(one.parts.get("partial") for one in summaries):
            parts["partial"] = True
        own = {key: value for key, value in first.parts.items() if key != _RELEVANCE}
        scoring = {stage: ms for stage, ms in first.took.items() if stage != _FIRST_PASS}
        of_items = [replace(first, parts=own, took=scoring)]
        for summary, total in zip(later, self.totals, strict=True):
            of_items.append(replace(summary, took={**summary.took, "total": total}))
        parts["items"] = [item.as_dict() for item in of_items]
        method = ">".join(item.plan.section.method for item in self.items)
        reason = next((one.reason for one in summaries if one.reason is not None), None)
        return Summary(method, took, parts, all(one.applied for one in summaries), reason)


def _scores(hits: Sequence[dict[str, Any]]) -> Float32:
    return np.array([hit.get("_score") or 0.0 for hit in hits], np.float32)


def _begin_details(hit: dict[str, Any], origin: tuple[int | None, float | None], method: str) -> None:
    """Arrange the details of a hit by item, in place."""
    own = hit.pop("_ttc", None)
    hit["_ttc"] = {"first_pass_rank": origin[0], "first_pass_score": origin[1], "items": []}
    if own is not None:
        if "relevance" in own:
            hit["_ttc"]["relevance"] = own["relevance"]
        rest = {key: value for key, value in own.items() if key not in hit["_ttc"]}
        hit["_ttc"]["items"].append({"method": method, **rest})


def _with_item(
    details: dict[str, Any], method: str, rank: int, score: float | None, own: dict[str, Any]
) -> dict[str, Any]:
    """Return a hit's details with those of one more item, and its rank and score before that."""
    rest = {key: value for key, value in own.items() if key not in ("first_pass_rank", "first_pass_score")}
    item = {"method": method, "rank_before": rank, "score_before": score, **rest}
    return {**details, "items": [*details["items"], item]}

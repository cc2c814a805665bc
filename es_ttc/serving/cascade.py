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

from es_ttc.serving.adaptive.ranking import AdaptiveRescoring
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.request.response import add_took, shortest
from es_ttc.serving.rescore.collapse import WindowGroups
from es_ttc.serving.rescore.page import below
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.window import RescoredResponse, WindowRescoring
from es_ttc.vectors.tokens import Float32

_FIRST_PASS = "first_pass"
Item = WindowRescoring | AdaptiveRescoring
"""The rescoring of one item of a list."""


def begin_cascade(plan: SearchPlan, begin: Callable[[SearchPlan], Item]) -> "Cascade":
    """Check all items of a search, and start their work that does not need the first pass."""
    later = [begin(one) for one in plan.later]
    plan = plan.reading([name for one in later for name in one.plan.numbers])
    whole = replace(plan.page, start=0, size=plan.page.fetch)
    first = begin(replace(plan, page=whole))
    return Cascade(replace(first.plan, page=plan.page), (first, *later))


@dataclass(frozen=True, slots=True)
class Cascade:
    """The rescoring of one search by several items; the page of the first is the whole first pass."""

    plan: SearchPlan
    items: Sequence[Item]

    @property
    def reads_bare_hits(self) -> bool:
        """Whether the first item ranks hits with only content hashes."""
        return self.items[0].reads_bare_hits

    async def rank(
        self, response: dict[str, Any], first_pass_ms: float, caller: Caller, *, ranked_ms: float | None = None
    ) -> RescoredResponse:
        """Put the response in the order of the items up to the first one that needs complete hits; see `rest`."""
        return await _Run(self, response, caller, ranked_ms).begin(first_pass_ms)


def items_of(ranking: "Item | Cascade") -> Sequence[Item]:
    """Return the items of a ranking, in order."""
    return ranking.items if isinstance(ranking, Cascade) else (ranking,)


@dataclass(slots=True)
class _Run:
    """One run of the items over a response, which is changed in place.

    Attributes:
        ranked_ms: Time of an earlier ranking of this search, in ms, or None.
        summaries: The parts of the summary of the items that have run.
        groups: The groups of the first item's window, if the request collapses.
        after: The score of the first hit after those that were kept, or None.
    """

    cascade: Cascade
    response: dict[str, Any]
    caller: Caller
    ranked_ms: float | None
    began: float = field(default_factory=time.perf_counter)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    applied: bool = True
    groups: WindowGroups | None = None
    after: np.float32 | None = None

    @property
    def _hits(self) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = self.response["hits"]["hits"]
        return hits

    async def begin(self, first_pass_ms: float) -> RescoredResponse:
        """Run the first item, and those that need no complete hits."""
        first, response = self.cascade.items[0], self.response
        origins = {id(hit): (rank, hit.get("_score")) for rank, hit in enumerate(self._hits, 1)}
        ranked = await first.rank(response, first_pass_ms, self.caller, ranked_ms=self.ranked_ms)
        self.applied, self.groups = ranked.applied, ranked.groups
        summary = response["ttc"]
        took = {_FIRST_PASS: summary["took"].pop(_FIRST_PASS)}
        relevance = {"relevance": summary.pop("relevance")} if "relevance" in summary else {}
        self.summaries.append(summary)
        if self._shows_details:
            for hit in self._hits:
                _begin_details(hit, origins.get(id(hit), (None, None)), first.plan.section.method)
        response["ttc"] = {
            "method": ">".join(one.plan.section.method for one in self.cascade.items),
            **relevance,
            "took": took,
        }
        self._summarise(summary["took"])
        joined = ranked.joined
        place = await self._run(1, lambda one: one.reads_bare_hits)
        if place == len(self.cascade.items):
            self._cut()
            return RescoredResponse(self.applied, self.groups, joined)
        page, window = self.cascade.plan.page, self.cascade.items[place].plan.page.window
        kept = max(page.start + page.size, window)
        if len(self._hits) > kept:
            self.after = _scores(self._hits[kept : kept + 1])[0]
            response["hits"]["hits"] = self._hits[:kept]

        async def rest() -> RescoredResponse:
            await self._run(place, lambda _: True)
            self._cut()
            return RescoredResponse(self.applied, self.groups, joined)

        return RescoredResponse(self.applied, self.groups, joined, rest)

    async def _run(self, place: int, may_run: Callable[[Item], bool]) -> int:
        """Run the items from a place on, as long as they may run; return the place of the next one."""
        while place < len(self.cascade.items) and may_run(self.cascade.items[place]):
            await self._step(self.cascade.items[place])
            place += 1
        return place

    async def _step(self, item: Item) -> None:
        """Put the first hits in the order of one more item."""
        plan, response, began = item.plan, self.response, time.perf_counter()
        head, tail = self._hits[: plan.page.window], self._hits[plan.page.window :]
        before = {id(hit): (rank, hit.get("_score"), hit.pop("_ttc", None)) for rank, hit in enumerate(head, 1)}
        part = {"hits": {"hits": head, "max_score": response["hits"].get("max_score")}}
        ranked = await item.rank(part, None, self.caller, spent=(began - self.began) * 1000, ranked_ms=self.ranked_ms)
        head = part["hits"]["hits"]
        for hit in head:
            rank, score, details = before[id(hit)]
            own = hit.pop("_ttc", None)
            if details is not None:
                hit["_ttc"] = details if own is None else _with_item(details, plan.section.method, rank, score, own)
        if ranked.applied and head:
            self._lower(tail, _scores(head)[-1], plan)
            response["hits"]["max_score"] = part["hits"]["max_score"]
        response["hits"]["hits"] = [*head, *tail]
        self.applied = self.applied and ranked.applied
        self.summaries.append(part["ttc"])
        ms = (time.perf_counter() - began) * 1000
        part["ttc"]["took"]["total"] = round(ms, 2)
        self._summarise(part["ttc"]["took"])
        add_took(response, ms)

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

    def _cut(self) -> None:
        page = self.cascade.plan.page
        self.response["hits"]["hits"] = self._hits[page.start : page.start + page.size]

    @property
    def _shows_details(self) -> bool:
        return any(one.plan.section.detail for one in self.cascade.items)

    def _summarise(self, took: dict[str, float]) -> None:
        """Bring the response's summary up to date, and add the times of an item."""
        summary = self.response["ttc"]
        times = summary.pop("took")
        for stage, ms in took.items():
            if stage != "total":
                times[stage] = round(times.get(stage, 0.0) + ms, 2)
        summary["applied"] = self.applied
        summary["window"] = self.summaries[0]["window"]
        if any(one.get("partial") for one in self.summaries):
            summary["partial"] = True
        reason = next((one["reason"] for one in self.summaries if "reason" in one), None)
        if reason is not None:
            summary["reason"] = reason
        summary["items"], summary["took"] = self.summaries, times


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

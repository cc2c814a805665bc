"""A window of hits in a method's order: scored under a deadline, or left as the engine ranked it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.errors import EsTtcError
from es_ttc.rescorers import registry
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.scoring import Method, Timings, WindowScorer, WindowScores
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.metrics import Metrics
from es_ttc.serving.rescore.collapse import (
    Group,
    RescoredResponse,
    WindowGroups,
    collapsed,
    firsts,
    groups_of,
    window_groups,
)
from es_ttc.serving.rescore.page import Ranking, combine, rank, set_max_score, shortest, shown_hit, with_field_name
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.search.fallback import attempt, budget_ms, fell_back
from es_ttc.serving.search.response import add_took
from es_ttc.serving.search.section import Section
from es_ttc.vectors.tokens import Float32


class WindowRescorers:
    """Begins to rescore windows.

    Args:
        scorer: Scores windows.
        default_timeout_ms: Scoring budget of a request that names none.
        tuned: Parameters of a request that gives none.
        metrics: Counts stages and fallbacks.
    """

    def __init__(self, scorer: WindowScorer, default_timeout_ms: float, tuned: TunedDefaults, metrics: Metrics) -> None:
        self.scorer = scorer
        self.metrics = metrics
        self._default_timeout_ms = default_timeout_ms
        self._tuned = tuned

    def begin(self, plan: SearchPlan, started: float, *, encode: bool) -> "WindowRescoring":
        """Check the method's name and parameters, and start to encode the query.

        Args:
            plan: The request, taken apart.
            started: `time.perf_counter` when the request came in.
            encode: Whether the query is encoded while the engine runs the first pass, not after it.

        Raises:
            InvalidRequest: There is no such method, or it has no such parameters.
        """
        rescorer = registry.load(plan.section.method)
        params, tuned = self._tuned.parse(rescorer, plan.section.params)
        method = Method(rescorer, params, plan.section.detail)
        begun = self.scorer.begin_encoding(method, plan.texts) if plan.page.fetch and encode else None
        budget = plan.section.timeout_ms or self._default_timeout_ms
        return WindowRescoring(self, plan, method, tuned, begun, budget, started)


@dataclass(frozen=True, slots=True)
class WindowRescoring:
    """The rescoring of one search's window.

    Attributes:
        rescorers: Scores and counts.
        plan: The request, taken apart.
        method: The method with its parameters.
        tuned: Those of its parameters that are tuned values, not the request's.
        begun: The query on its way through the encoder, where that has begun.
        budget: What scoring may take, in ms; the caller's own timeout can leave less.
        started: `time.perf_counter` when the request came in.
    """

    rescorers: WindowRescorers
    plan: SearchPlan
    method: Method
    tuned: Mapping[str, Any]
    begun: asyncio.Task[EncodedQuery] | None
    budget: float
    started: float

    async def rank(self, response: dict[str, Any], caller: Caller, first_pass_ms: float) -> RescoredResponse:
        """Put the engine's response in the method's order, in place.

        Args:
            response: The engine's decoded response to the plan.
            caller: In whose name documents are read.
            first_pass_ms: What the engine took.

        Raises:
            InvalidRequest: The index lacks what the method needs, or has another encoder.
            EsTtcError: Scoring failed or was late, and the request says ``on_error: fail``.
        """
        plan, metrics = self.plan, self.rescorers.metrics
        took, began = Timings(first_pass=first_pass_ms), time.perf_counter()
        hits = response["hits"]["hits"]
        groups = None if plan.collapse is None else groups_of(hits, plan.collapse.field)
        outcome = await attempt(
            self.rescorers.scorer.score(hits, self.method, plan.texts, self.begun, caller, took),
            what="scoring",
            method=plan.section.method,
            budget_ms=budget_ms(self.budget, plan.timeout_ms, self.started),
        )
        if isinstance(outcome, EsTtcError):
            if plan.section.on_error == "fail":
                raise outcome
            window = cut_first_pass(response, plan, groups)
        else:
            window = await self._reorder(response, outcome, groups)
        response["ttc"] = self._summary(outcome, len(hits), took)
        add_took(response, (time.perf_counter() - began) * 1000)
        for stage, ms in took.as_dict().items():
            metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(outcome, EsTtcError):
            fell_back(metrics, "first pass answered", plan.section.method, outcome)
        else:
            metrics.skipped(outcome.skipped.values())
        return RescoredResponse(not isinstance(outcome, EsTtcError), window)

    async def _reorder(
        self, response: dict[str, Any], scored: WindowScores, groups: Sequence[Group] | None
    ) -> WindowGroups | None:
        plan, section = self.plan, self.plan.section
        hits, window = response["hits"]["hits"], None
        first_pass = np.array([hit.get("_score") or 0.0 for hit in hits], dtype=np.float32)
        ranking = ranking_of(section, first_pass, scored, plan.page.block)
        if groups is not None:
            ranking = collapsed(ranking, groups)
            window = window_groups(groups, plan.page.fetch, first_pass, ranking)
        page = slice(plan.page.start, plan.page.start + plan.page.size)
        details = await self._details(scored, ranking, page)
        shown = []
        for place, score in zip(ranking.order[page].tolist(), map(shortest, ranking.scores[page]), strict=True):
            hit = hits[place]
            detail = {"first_pass_rank": place + 1, "first_pass_score": hit.get("_score")} | details.get(place, {})
            if place in scored.stale:
                detail["stale"] = True
            if place in scored.skipped:
                detail["skipped"] = scored.skipped[place].value
            rescored = shortest(scored.values[place]) if scored.mask[place] else None
            shown.append(shown_hit(hit, section, score, rescored, detail, explain=plan.explain))
        response["hits"]["hits"] = shown
        set_max_score(response, ranking.scores)
        return window

    async def _details(self, scored: WindowScores, ranking: Ranking, page: slice) -> dict[int, dict[str, Any]]:
        """Return what the method shows about the page's documents, by first-pass place."""
        if not self.plan.section.detail:
            return {}
        position = {int(place): number for number, place in enumerate(np.flatnonzero(scored.mask))}
        places = [place for place in ranking.order[page].tolist() if place in position]
        positions = [position[place] for place in places]
        try:
            details = await self.rescorers.scorer.details(scored, self.method, positions)
        except Exception as error:  # noqa: BLE001 - anyone's method may raise; the ranking stands without its details
            log.error("detail failed", method=self.plan.section.method, exc_info=error)
            return {}
        return {
            place: with_field_name(detail, scored.fields[number] if scored.fields else ())
            for place, number, detail in zip(places, positions, details, strict=True)
        }

    def _summary(self, outcome: WindowScores | EsTtcError, considered: int, took: Timings) -> dict[str, Any]:
        summary: dict[str, Any] = {"method": self.plan.section.method, "applied": not isinstance(outcome, EsTtcError)}
        summary["window"] = considered
        if self.tuned:
            summary["tuned"] = dict(self.tuned)
        if isinstance(outcome, EsTtcError):
            return summary | {"scored": 0, "reason": str(outcome), "took": took.as_dict()}
        summary["scored"] = int(outcome.mask.sum())
        if outcome.stale:
            summary["stale"] = len(outcome.stale)
        if outcome.skipped:
            summary["skipped"] = skip_reasons.summary(outcome.skipped.values())
        if outcome.encoder is not None:
            summary |= {"encoder": outcome.encoder, "features_from_memory": outcome.from_memory}
        return summary | {"took": took.as_dict()}


def ranking_of(section: Section, first_pass: Float32, scored: WindowScores, block: int) -> Ranking:
    """Return a first pass in the order that the section asks for.

    Args:
        section: How both scores are combined.
        first_pass: ``(n,)`` the engine's scores.
        scored: The method's.
        block: Ranks of a block, see :func:`rank`.
    """
    final = combine(
        section.score_mode,
        first_pass,
        scored.values,
        query_weight=section.query_weight,
        rescore_query_weight=section.rescore_query_weight,
    )
    return rank(first_pass, final, scored.mask, block)


def cut_first_pass(response: dict[str, Any], plan: SearchPlan, groups: Sequence[Group] | None) -> WindowGroups | None:
    """Cut the page from the first pass as the engine ranked it, in place; return the window's groups."""
    hits, window = response["hits"]["hits"], None
    places = list(range(len(hits)))
    if groups is not None:
        places = firsts(groups).tolist()
        window = window_groups(groups, plan.page.fetch, np.zeros(0, dtype=np.float32), None)
    page = places[plan.page.start : plan.page.start + plan.page.size]
    response["hits"]["hits"] = [
        shown_hit(hit, plan.section, None, None, {"first_pass_rank": place + 1, "first_pass_score": hit.get("_score")})
        for place, hit in ((place, hits[place]) for place in page)
    ]
    return window

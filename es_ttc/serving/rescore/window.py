"""A window of hits in a method's order; in the engine's order if scoring fails or is late."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import SelectiveRescorer
from es_ttc.rescorers.relevance import Calibration
from es_ttc.serving.answer_forms import require_scores
from es_ttc.serving.candidates.targets import TargetCache
from es_ttc.serving.deadline import Deadline, fell_back
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.keys import are_identified
from es_ttc.serving.features.scores import Method, Timings, WindowRequest, WindowScores, first_pass_scores
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.logs import log
from es_ttc.serving.request.first_pass import search_again
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.request.response import add_took, shortest, with_field_name
from es_ttc.serving.rescore.candidates import NONE_JOINED, CandidateSearch, JoinedCandidates, start_candidates
from es_ttc.serving.rescore.collapse import (
    Group,
    WindowGroups,
    collapsed,
    firsts,
    groups_of,
    window_groups,
)
from es_ttc.serving.rescore.page import (
    BURIED,
    NO_FEATURES,
    PINNED,
    Ints,
    Ranking,
    as_float32,
    pinned_count,
    ranking_of,
    set_max_score,
    shown_hit,
    stretched,
)
from es_ttc.serving.rescore.plan import SearchPlan
from es_ttc.serving.rescore.relevance import calibration_for, cut_by_relevance, relevance_of, shown_relevance
from es_ttc.serving.rescore.two_requests import by_further_keys, places_in
from es_ttc.vectors.tokens import Float32

Again = Callable[[Mapping[str, Any]], Awaitable[tuple[dict[str, Any], float]]]
"""Sends another body of the search; returns the engine's response, and its time in ms."""


@dataclass(frozen=True, slots=True)
class RescoredResponse:
    """Result of rescoring one response.

    Attributes:
        groups: The groups of the ranked documents, if the request collapses.
        joined: The candidates that joined the window; their hits on the page still lack their fields.
        rest: Runs the items that need complete hits, once the response's hits are complete; None if there are none.
    """

    applied: bool
    groups: WindowGroups | None = None
    joined: JoinedCandidates = NONE_JOINED
    rest: "Callable[[], Awaitable[RescoredResponse]] | None" = None


@dataclass(frozen=True, slots=True)
class WindowRescoring:
    """The rescoring of one search's window.

    Attributes:
        tuned: Those of the method's parameters that are tuned values, not the request's.
        calibration: From which hits' relevance is computed; None if it is not shown, or there is none.
        again: Sends another body of the search.
        budget: The scoring timeout, in ms; the caller's own timeout may be shorter.
        started: `time.perf_counter` when the request arrived.
    """

    gateway: Gateway
    plan: SearchPlan
    method: Method
    tuned: Mapping[str, Any]
    calibration: Calibration | None
    begun: asyncio.Task[EncodedQuery] | None
    candidates: CandidateSearch | None
    again: Again
    budget: float
    started: float

    @classmethod
    def begin(
        cls,
        gateway: Gateway,
        known: TargetCache,
        request: SearchRequest,
        item: SearchItem,
        plan: SearchPlan,
        *,
        calibrated: str,
        encode: bool,
    ) -> "WindowRescoring":
        """Check the method's name and parameters, and start to encode the query and to search candidates.

        The calibration is that of the name `calibrated`.
        """
        rescorer = registry.load(plan.section.method)
        params, tuned = gateway.tuned.parse(rescorer, plan.section.params)
        calibration = None
        try:
            calibration = calibration_for(plan.section, gateway.tuned.relevance, calibrated)
        except MissingFeature as problem:
            if plan.section.on_error == "fail":
                raise
            plan = replace(plan, problem=problem)
        method = Method(rescorer, params, bool(plan.section.detail), signals=calibration is not None)
        plan = plan.reading(method.fields)
        if method.partial is None or not method.partial.joins_nearest:
            plan = plan.undivided_query()
        elif request.is_multi and plan.is_divided:
            plan = plan.undivided_query("an `_msearch` does not return the scores of named queries")
        possible = plan.problem is None
        begun = candidates = None
        count = candidates_of(plan, method) if possible else 0
        if (plan.page.fetch or count) and encode and possible:
            begun = gateway.scorer.begin_encoding(method, plan.texts, request.caller(item))
        if count:
            tokens = method.features.query_tokens
            candidates = start_candidates(gateway, known, request, item, plan, count, begun, tokens=tokens)
        budget = plan.section.timeout_ms or gateway.settings.default_timeout_ms
        again = partial(search_again, gateway.engine, request, item)
        return cls(gateway, plan, method, tuned, calibration, begun, candidates, again, budget, request.started)

    @property
    def counts_candidates(self) -> bool:
        """Whether totals and aggregations are those of what the query matches and what joins."""
        section = self.plan.section.candidates
        return (
            self.candidates is not None
            and self.candidates.unsupported_reason is None
            and (section is None or section.count)
        )

    @property
    def reads_bare_hits(self) -> bool:
        """Whether hits with only content hashes can be ranked.

        Details that depend on the whole window may contain the id of any of its documents.
        """
        return not self.method.detail or isinstance(self.method.rescorer, SelectiveRescorer)

    async def rank(
        self,
        response: dict[str, Any],
        first_pass_ms: float | None,
        caller: Caller,
        *,
        spent: float = 0.0,
        ranked_ms: float | None = None,
    ) -> RescoredResponse:
        """Put the engine's response in the method's order, in place.

        ``spent`` is the part of the time budget that earlier items have used, ``ranked_ms`` the time of an earlier
        ranking of this search, which is repeated over complete hits. ``first_pass_ms`` is None after another item.
        """
        plan, metrics = self.plan, self.gateway.metrics
        timings, began = Timings(first_pass=first_pass_ms), time.perf_counter()
        hits = response["hits"]["hits"]
        groups = None if plan.collapse is None else groups_of(hits, plan.collapse.field)
        outcome: _ScoredWindow | EsTtcError
        relevance: dict[str, Any] = {}
        if plan.problem is not None:
            outcome = plan.problem
        else:
            require_scores(hits, "the search failed")
            budget = self.budget - spent - (ranked_ms or 0.0)
            deadline = Deadline.within(budget, timeout_ms=plan.timeout_ms, started=self.started)
            outcome = await deadline.run(self._scored(hits, caller, timings), "scoring", method=plan.section.method)
        if isinstance(outcome, EsTtcError):
            if plan.section.on_error == "fail":
                raise outcome
            window = cut_first_pass(response, plan, groups)
        else:
            window, relevance = await self._reorder(response, outcome)
        response["ttc"] = self._summary(outcome, min(len(hits), plan.page.window), relevance, timings)
        add_took(response, (time.perf_counter() - began) * 1000)
        if ranked_ms is None:  # one search is counted once
            for stage, ms in timings.as_dict().items():
                metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(outcome, EsTtcError):
            if ranked_ms is None:
                fell_back(metrics, "first pass answered", plan.section.method, outcome)
            return RescoredResponse(False, window)
        if ranked_ms is None:
            metrics.skipped(outcome.scores.skipped.values())
        return RescoredResponse(True, window, outcome.kept)

    async def _scored(self, hits: Sequence[dict[str, Any]], caller: Caller, timings: Timings) -> "_ScoredWindow":
        """Return the scores of the window and the candidates that join it."""
        window = hits[: self.plan.page.window]
        pinned = pinned_count(first_pass_scores(window))
        joined, located = NONE_JOINED, None
        if self.candidates is not None:
            started = time.perf_counter()
            locating = self.gateway.attached.locate(window, caller)
            joined, located = await asyncio.gather(self.candidates.find(window), locating)
            located = located.followed_by(joined.located)
            timings.candidates = (time.perf_counter() - started) * 1000
        union = [*window, *joined.hits]
        parts, words, factors = self.plan.parts, None, None
        if parts is not None:
            words = parts.words(union, first_pass_scores(union))
            factors = parts.factors(union, words, len(window))
        request = WindowRequest(self.plan.texts, self.begun, caller, timings)
        scores = await self.gateway.scorer.score(
            union, self.method, request, joined=len(joined.hits), pinned=pinned, located=located, words=words
        )
        # the hits after the window keep the engine's order
        left = joined.places_left(hits, len(window))
        places = [*range(len(window)), *[None] * len(joined.hits), *left]
        relevance = None
        if self.calibration is not None:
            relevance = relevance_of(scores, self.calibration, self.plan.section, self.method.params)
        hits = [*union, *(hits[place] for place in left)]
        values = scores.values if words is None else stretched(scores.values, words, len(window))
        return _ScoredWindow(hits, places, joined, scores, pinned, relevance, values, factors)

    async def _reorder(
        self, response: dict[str, Any], outcome: "_ScoredWindow"
    ) -> tuple[WindowGroups | None, dict[str, Any]]:
        """Set the page's hits; return the window's groups, and what the response tells about relevance."""
        plan, section, scored = self.plan, self.plan.section, outcome.scores
        hits, window = outcome.hits, None
        first_pass = np.concatenate((scored.first_pass, first_pass_scores(hits[len(scored.first_pass) :])))
        in_first_pass = np.array([place is not None for place in outcome.places], np.bool_)
        buried = (first_pass <= 0) & in_first_pass & plan.changes_scores
        mask = scored.mask & ~buried[: len(scored.mask)]
        ranked = partial(ranking_of, section, first_pass, outcome.final, mask, outcome.pinned)
        ranking = outcome.without_incomplete(ranked())
        if plan.by_further_keys and len(np.unique(ranking.scores)) < len(ranking.scores):
            ranking = outcome.without_incomplete(ranked(await self._ties(outcome)))
        counts: dict[str, Any] = {}
        if outcome.relevance is not None and self.calibration is not None:
            ranking, counts = cut_by_relevance(
                ranking, outcome.relevance, self.calibration, section.min_relevance, outcome.pinned
            )
        if plan.collapse is not None:
            groups = groups_of(hits, plan.collapse.field)
            ranking = collapsed(ranking, groups)
            own = list(compress(groups, in_first_pass))
            beyond = [groups[number] for number in ranking.order.tolist() if not in_first_pass[number]]
            window = window_groups(own, plan.page.fetch, first_pass[in_first_pass], ranking, beyond=beyond)
            if section.min_relevance is not None:
                window = replace(window, complete=True)  # groups outside the window have no relevance
        page = slice(plan.page.start, plan.page.start + plan.page.size)
        details = await self._details(scored, ranking, page)
        shown = []
        for place, score in zip(ranking.order[page].tolist(), map(shortest, ranking.scores[page]), strict=True):
            hit = hits[place]
            detail = outcome.origin(place) | details.get(place, {})
            if outcome.relevance is not None:
                detail["relevance"] = shown_relevance(outcome.relevance, place)
            if place in scored.stale:
                detail["stale"] = True
            if place in scored.skipped:
                detail["skipped"] = scored.skipped[place].value
            kept = PINNED if place < outcome.pinned else BURIED if buried[place] else None
            rescored = shortest(outcome.values[place]) if scored.has(place) and kept is None else None
            unscored = kept or NO_FEATURES
            factor = None if rescored is None else outcome.factor(place)
            if factor is not None:
                detail["factor"] = factor
            shown.append(
                shown_hit(hit, section, score, rescored, detail, explain=plan.explain, unscored=unscored, factor=factor)
            )
        response["hits"]["hits"] = shown
        # Elasticsearch sets none with further sort keys, and no engine without hits.
        if plan.page.fetch and (not plan.by_further_keys or response["hits"].get("max_score") is not None):
            set_max_score(response, ranking.scores)
        return window, counts

    async def _ties(self, outcome: "_ScoredWindow") -> Ints:
        """Return the places of hits in the order of the sort's further keys; the last place if they are gone.

        Without ids and contents of all, no request names them: then the order is that of the first pass.
        """
        if not are_identified(outcome.hits):
            return np.arange(len(outcome.hits))
        scored = outcome.hits[: len(outcome.scores.mask)]
        answer, _ = await self.again(by_further_keys(self.plan, scored, outcome.joined.filters))
        return np.array(places_in(answer["hits"]["hits"], outcome.hits), np.intp)

    async def _details(self, scored: WindowScores, ranking: Ranking, page: slice) -> dict[int, dict[str, Any]]:
        """Return the method's details of the page's documents, by first-pass place."""
        if not self.plan.section.detail:
            return {}
        position = scored.positions()
        places = [place for place in ranking.order[page].tolist() if place in position]
        positions = [position[place] for place in places]
        try:
            details = await self.gateway.scorer.details(scored, self.method, positions)
        except Exception as error:  # noqa: BLE001 - a method may raise anything; the ranking is valid without details
            log.error("detail failed", method=self.plan.section.method, exc_info=error)
            return {}
        return {
            place: with_field_name(detail, scored.fields[number] if scored.fields else ())
            for place, number, detail in zip(places, positions, details, strict=True)
        }

    def _summary(
        self,
        outcome: "_ScoredWindow | EsTtcError",
        considered: int,
        relevance: Mapping[str, Any],
        timings: Timings,
    ) -> dict[str, Any]:
        summary: dict[str, Any] = {"method": self.plan.section.method, "applied": not isinstance(outcome, EsTtcError)}
        summary["window"] = considered
        if self.tuned:
            summary["tuned"] = dict(self.tuned)
        if isinstance(outcome, EsTtcError):
            return summary | {"scored": 0, "reason": str(outcome), "took": timings.as_dict()}
        scores = outcome.scores
        summary["scored"] = int(scores.mask.sum())
        if self.candidates is not None:
            summary["candidates"] = outcome.kept.as_dict()
        if self.plan.undivided is not None:
            summary["factors"] = {"applied": False, "reason": self.plan.undivided}
        summary |= self.gateway.scorer.summary(scores, self.method)
        if scores.stale:
            summary["stale"] = len(scores.stale)
        if scores.skipped:
            summary["skipped"] = skip_reasons.summary(scores.skipped.values())
        if scores.encoder is not None:
            summary |= {"encoder": scores.encoder, "features_from_memory": scores.from_memory}
        if relevance:
            summary["relevance"] = relevance
        return summary | {"took": timings.as_dict()}


@dataclass(frozen=True, slots=True)
class _ScoredWindow:
    """The window's hits, of which the first are pinned, the candidates, then the other hits of the first pass.

    Attributes:
        places: For each hit its place in the first pass, from 0; None for a candidate.
        scores: The scores of the window's hits and the candidates.
        relevance: ``(n,)`` their relevance, NaN where it is unknown; None without a calibration.
        values: ``(n,)`` the method's scores as they are combined.
        factors: ``(n,)`` what the query says besides its words makes of them; None if it says nothing.
    """

    hits: Sequence[dict[str, Any]]
    places: Sequence[int | None]
    joined: JoinedCandidates
    scores: WindowScores
    pinned: int
    relevance: Float32 | None
    values: Float32
    factors: Float32 | None

    @property
    def final(self) -> Float32:
        """The method's scores, times the factors of the query."""
        return self.values if self.factors is None else as_float32(self.values.astype(np.float64) * self.factors)

    def factor(self, place: int) -> float | None:
        """Return the factor of a scored hit, None if the query has none."""
        return None if self.factors is None else shortest(self.factors[place])

    @property
    def kept(self) -> JoinedCandidates:
        """The candidates that have the features which the method needs; the others are left out."""
        end = len(self.scores.complete)
        return self.joined.only(self.scores.complete[end - len(self.joined.hits) :].tolist())

    def origin(self, number: int) -> dict[str, Any]:
        """Return a hit's rank and score in the first pass, for its details."""
        place = self.places[number]
        rank = None if place is None else place + 1
        return {"first_pass_rank": rank, "first_pass_score": self.hits[number].get("_score")}

    def without_incomplete(self, ranking: Ranking) -> Ranking:
        """Return a ranking without candidates that lack a feature which the method needs."""
        if not self.joined.hits:
            return ranking
        places, complete = self.places, self.scores.complete
        kept = [places[number] is not None or bool(complete[number]) for number in ranking.order.tolist()]
        return Ranking(ranking.order[kept], ranking.scores[kept])


def candidates_of(plan: SearchPlan, method: Method) -> int:
    """Return the number of candidates to request for a search."""
    if not plan.page.size and not plan.shows_more_than_hits:
        return 0
    if plan.section.candidates is not None and plan.section.candidates.knn is not None:
        return plan.section.candidates.knn
    return plan.page.window if method.partial is not None and method.partial.joins_nearest else 0


def cut_first_pass(response: dict[str, Any], plan: SearchPlan, groups: Sequence[Group] | None) -> WindowGroups | None:
    """Set the page's hits to those of the first pass in the engine's order; return the window's groups."""
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

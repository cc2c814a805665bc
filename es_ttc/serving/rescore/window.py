"""A window of hits in a method's order; in the engine's order if scoring fails or is late."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from es_ttc.errors import DeadlineExceeded, EsTtcError, MissingFeature
from es_ttc.rescorers import registry
from es_ttc.rescorers.base import SelectiveRescorer
from es_ttc.rescorers.relevance import Calibration
from es_ttc.serving.answer_forms import require_scores
from es_ttc.serving.candidates.targets import TargetCache
from es_ttc.serving.deadline import Deadline
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.encoding import EncodedQuery
from es_ttc.serving.features.keys import are_identified
from es_ttc.serving.features.on_demand import Coverage
from es_ttc.serving.features.scores import Method, Timings, WindowRequest, WindowScores, first_pass_scores
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import Caller
from es_ttc.serving.load import CallerLoad, Rung
from es_ttc.serving.logs import log
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.request.request import SearchItem, SearchRequest
from es_ttc.serving.request.response import with_field_name
from es_ttc.serving.request.section import DEFAULT_METHOD
from es_ttc.serving.rescore.best_hits import best_of_parts
from es_ttc.serving.rescore.candidates import NONE_JOINED, CandidateSearch, start_candidates
from es_ttc.serving.rescore.order import Order, ScoredWindow, of_parts, order
from es_ttc.serving.rescore.page import RankedPage, first_pass_page, max_score, ordered_page
from es_ttc.serving.rescore.ranking import Ints, pinned_count, stretched
from es_ttc.serving.rescore.relevance import calibration_for, relevance_of
from es_ttc.serving.rescore.two_requests import by_further_keys, places_in
from es_ttc.serving.summary import Summary, shares_read

SearchAgain = Callable[[Mapping[str, Any]], Awaitable[tuple[dict[str, Any], float]]]
"""Sends another body of the search; returns the engine's response, and its time in ms."""


@dataclass(frozen=True, slots=True)
class WindowRescoring:
    """The rescoring of one search's window.

    Attributes:
        tuned: Those of the method's parameters that are tuned values, not the request's.
        calibration: From which hits' relevance is computed; None if it is not shown, or there is none.
        budget: The scoring timeout, in ms; the caller's own timeout may be shorter.
        started: `time.perf_counter` when the request arrived.
        rung: What it gives up, because scoring is expected to take `expected` seconds.
    """

    gateway: Gateway
    plan: SearchPlan
    caller: Caller
    method: Method
    tuned: Mapping[str, Any]
    calibration: Calibration | None
    begun: asyncio.Task[EncodedQuery] | None
    candidates: CandidateSearch | None
    search_again: SearchAgain
    budget: float
    started: float
    rung: Rung
    expected: float

    @classmethod
    def begin(
        cls,
        gateway: Gateway,
        known: TargetCache,
        request: SearchRequest,
        item: SearchItem,
        plan: SearchPlan,
        again: SearchAgain,
        load: CallerLoad,
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
            if plan.section.shows_relevance:
                calibration = calibration_for(plan.section, gateway.tuned.relevance, calibrated)
        except MissingFeature as problem:
            if plan.section.on_error == "fail":
                raise
            plan = replace(plan, problem=problem)
        measured = plan.section.parts is not None and plan.section.method == DEFAULT_METHOD
        method = Method(rescorer, params, bool(plan.section.detail), signals=calibration is not None or measured)
        plan = plan.reading(method.fields)
        if method.partial is None or not method.partial.joins_nearest:
            plan = replace(plan.undivided_query(), part_words=None)
        elif request.is_multi:
            plan = plan.without_named_scores("an `_msearch` does not return the scores of named queries")
        budget = plan.section.timeout_ms or gateway.settings.scoring_timeout_ms
        rung, expected = load.rung(min(budget, plan.timeout_ms or budget) / 1000)
        rung = lowest_rung(rung, plan, method, relevance=calibration is not None and plan.section.asks_relevance)
        load.begin(rung)
        if rung is Rung.FIRST_PASS and plan.problem is None:
            plan = replace(plan.page_alone(), problem=expected_late(expected, budget))
        if rung is not Rung.FULL:
            method = replace(method, reduced=True)
        caller, possible = request.caller(item), plan.problem is None
        begun = candidates = None
        count = candidates_of(plan, method) if possible and rung is not Rung.NO_CANDIDATES else 0
        if (plan.page.fetch or count) and encode and possible:
            begun = gateway.scorer.begin_encoding(method, plan.texts, caller)
        if count:
            tokens = method.features.query_tokens
            candidates = start_candidates(gateway, known, request, item, plan, count, begun, tokens=tokens)
        return cls(
            gateway, plan, caller, method, tuned, calibration, begun, candidates, again, budget, request.started,
            rung, expected,
        )  # fmt: skip

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

    async def rank(self, hits: Sequence[dict[str, Any]], *, first_pass_ms: float | None, since: float) -> RankedPage:
        """Return the page of some hits in the method's order.

        ``first_pass_ms`` is None after another item. ``since`` is `time.perf_counter` when scoring began.
        """
        plan, timings, coverage = self.plan, Timings(first_pass=first_pass_ms), Coverage()
        scored: ScoredWindow | EsTtcError
        if plan.problem is not None:
            scored = plan.problem
        else:
            require_scores(hits, "the search failed")
            deadline = Deadline.within(self.budget, timeout_ms=plan.timeout_ms, started=self.started, since=since)
            scored = await deadline.run(self._scored(hits, timings, coverage), "scoring", method=plan.section.method)
        if isinstance(scored, EsTtcError):
            if plan.section.on_error == "fail":
                raise scored
            page, groups = first_pass_page(plan, hits)
            parts = self._parts(hits, coverage, scored=0)
            summary = Summary.fell_back(plan.section.method, scored, timings.as_dict(), **parts)
            return RankedPage(page, summary, groups=groups, fallbacks=[("first pass answered", scored)])
        ordered = order(plan, scored, self.calibration)
        if plan.by_further_keys and ordered.tied:
            ordered = order(plan, scored, self.calibration, await self._ties(scored))
        details = await self._details(scored, ordered) if plan.section.detail else {}
        return RankedPage(
            hits=ordered_page(plan, scored, ordered, details),
            summary=self._summary(hits, scored, ordered, timings, coverage),
            max_score=max_score(ordered.ranking.scores) if plan.page.fetch else None,
            groups=ordered.groups,
            candidates=scored.complete_candidates,
            skipped=[*scored.scores.skipped.values()],
        )

    async def _scored(self, hits: Sequence[dict[str, Any]], timings: Timings, coverage: Coverage) -> ScoredWindow:
        """Return the scores of the window and the candidates that join it."""
        window = hits[: self.plan.page.window]
        pinned = pinned_count(first_pass_scores(window))
        joined, located = NONE_JOINED, None
        if self.candidates is not None:
            started = time.perf_counter()
            locating = self.gateway.attached.locate(window, self.caller, assume=True)
            joined, located = await asyncio.gather(self.candidates.find(window), locating)
            located = located.followed_by(joined.located)
            timings.candidates = (time.perf_counter() - started) * 1000
        union = [*window, *joined.hits]
        parts, words, factors = self.plan.divided_query, None, None
        if parts is not None:
            words = parts.words(union, first_pass_scores(union))
            factors = parts.factors(union, words, len(window))
        each = self.plan.section.parts is not None
        part_words = None if self.plan.part_words is None else self.plan.part_words.scores(union)
        request = WindowRequest(self.plan.texts, self.begun, self.caller, timings, coverage, each=each)
        scores = await self.gateway.scorer.score(
            union, self.method, request,
            joined=len(joined.hits), pinned=pinned, located=located, words=words, part_words=part_words,
        )  # fmt: skip
        # the hits after the window keep the engine's order
        left = joined.places_left(hits, len(window))
        places = [*range(len(window)), *[None] * len(joined.hits), *left]
        every = [*union, *(hits[place] for place in left)]

        def combined(scores: WindowScores) -> ScoredWindow:
            relevance = None
            if self.calibration is not None:
                relevance = relevance_of(scores, self.calibration, self.plan.section, self.method.params)
            values = scores.values if words is None else stretched(scores.values, words, len(window))
            return ScoredWindow(every, places, joined, scores, pinned, relevance, values, factors)

        if not scores.parts:
            return combined(scores)
        return of_parts(scores, [combined(part) for part in scores.parts])

    async def _ties(self, window: ScoredWindow) -> Ints:
        """Return the places of hits in the order of the sort's further keys; the last place if they are gone.

        Without ids and contents of all, no request names them: then the order is that of the first pass.
        """
        if not are_identified(window.hits):
            return np.arange(len(window.hits))
        scored = window.hits[: len(window.scores.mask)]
        answer, _ = await self.search_again(by_further_keys(self.plan, scored, window.candidates.filters))
        return np.array(places_in(answer["hits"]["hits"], window.hits), np.intp)

    async def _details(self, window: ScoredWindow, ordered: Order) -> dict[int, dict[str, Any]]:
        """Return the method's details of the page's documents, by place in the window."""
        position, turns = window.scores.positions(), ordered.turns
        places = [place for place in ordered.ranking.order[self.plan.page.ranks].tolist() if place in position]
        details: dict[int, dict[str, Any]] = {}
        for part, scores in enumerate(window.scores.parts or [window.scores]):
            own = [place for place in places if turns is None or turns.part_of(place) == part]
            positions = [position[place] for place in own]
            try:
                of_part = await self.gateway.scorer.details(scores, self.method, positions)
            except Exception as error:  # noqa: BLE001 - a method may raise anything; the ranking is valid without details
                log.error("detail failed", method=self.plan.section.method, exc_info=error)
                continue
            for place, number, detail in zip(own, positions, of_part, strict=True):
                fields = scores.fields[number] if scores.fields else ()
                details[place] = with_field_name(detail, fields) | scores.share(number)
        return details

    def _parts(self, hits: Sequence[Any], coverage: Coverage, scored: int) -> dict[str, Any]:
        """Return the parts of a summary that do not depend on whether the method was applied."""
        parts: dict[str, Any] = {"window": min(len(hits), self.plan.page.window)}
        if self.tuned:
            parts["tuned"] = dict(self.tuned)
        if self.rung is not Rung.FULL:
            parts["load"] = {"rung": self.rung.value, "expected_ms": round(1000 * self.expected)}
        return {**parts, "scored": scored, **coverage.as_dict()}

    def _summary(
        self, hits: Sequence[Any], window: ScoredWindow, ordered: Order, timings: Timings, coverage: Coverage
    ) -> Summary:
        scores = window.scores
        parts = self._parts(hits, coverage, scored=int(scores.mask.sum()))
        if self.candidates is not None:
            parts["candidates"] = window.complete_candidates.as_dict()
        if self.plan.undivided is not None:
            parts["factors"] = {"applied": False, "reason": self.plan.undivided}
        parts |= self.gateway.scorer.summary(scores, self.method) | shares_read(scores.query)
        if scores.stale:
            parts["stale"] = len(scores.stale)
        if scores.skipped:
            parts["skipped"] = skip_reasons.skipped_summary(scores.skipped.values())
        if scores.encoder is not None:
            parts |= {"encoder": scores.encoder, "features_from_memory": scores.from_memory}
        if ordered.relevance:
            parts["relevance"] = ordered.relevance
        if ordered.turns is not None:
            parts["parts"] = best_of_parts(window, ordered)
        if self.plan.part_words is not None and self.plan.part_words.reason is not None:
            parts["part_words"] = {"applied": False, "reason": self.plan.part_words.reason}
        return Summary(self.plan.section.method, timings.as_dict(), parts)


def candidates_of(plan: SearchPlan, method: Method) -> int:
    """Return the number of candidates to request for a search."""
    if not plan.page.size and not plan.shows_more_than_hits:
        return 0
    if plan.section.candidates is not None and plan.section.candidates.knn is not None:
        return plan.section.candidates.knn
    return plan.page.window if method.partial is not None and method.partial.joins_nearest else 0


def lowest_rung(rung: Rung, plan: SearchPlan, method: Method, *, relevance: bool) -> Rung:
    """Return the rung that a search may go down to.

    One that asks for an error, for certain signals, candidates or relevance gets them, or the engine's own order.
    """
    asked = plan.section.candidates is not None or relevance or not method.taken
    if plan.section.on_error == "fail" or (asked and rung is not Rung.FIRST_PASS):
        return Rung.FULL
    return rung


def expected_late(expected: float, budget: float) -> DeadlineExceeded:
    """Return why a search is not scored whose scoring is expected to take some seconds, with a budget in ms."""
    return DeadlineExceeded(
        f"so many searches are being answered that scoring would take about {1000 * expected:.0f} ms, and its budget "
        f"is {budget:g} ms"
    )

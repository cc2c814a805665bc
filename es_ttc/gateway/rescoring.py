"""One search answered by the engine, put into the method's order: deadline, fallback, page, marks."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.errors import DeadlineExceeded, EsTtcError, InvalidRequest
from es_ttc.gateway import faults
from es_ttc.gateway.collapse import (
    Group,
    WindowGroups,
    collapsed,
    firsts,
    following,
    groups_of,
    rest_of_page,
    window_groups,
)
from es_ttc.gateway.encoding import EncodedQuery
from es_ttc.gateway.logs import log
from es_ttc.gateway.metrics import Metrics
from es_ttc.gateway.page import Ranking, combine, explained, rank, shortest, without_guard
from es_ttc.gateway.scoring import Method, Scored, ScoringError, Took, WindowScorer
from es_ttc.gateway.search_body import SearchPlan
from es_ttc.gateway.section import Section
from es_ttc.gateway.upstream import Caller
from es_ttc.gateway.walks.walking import Asked, Walks
from es_ttc.rescorers import registry
from es_ttc.rescorers.tuned import TunedDefaults
from es_ttc.vectors.tokens import Float32

_TIME_TO_ANSWER_MS = 20.0
"""What is left of the caller's own timeout for answering with the first pass."""


@dataclass(slots=True)
class Search:
    """One search of ours on its way.

    Attributes:
        plan: The request, taken apart.
        method: The method with its parameters.
        tuned: Those of its parameters that are tuned values, not the request's.
        started: `time.perf_counter` when the request came in.
        begun: The query on its way through the encoder, where it is encoded at all.
        window: The window's groups, once they are known, where the request collapses.
    """

    plan: SearchPlan
    method: Method
    tuned: Mapping[str, Any]
    started: float
    begun: asyncio.Task[EncodedQuery] | None = None
    window: WindowGroups | None = None


@dataclass(slots=True)
class WalkSearch:
    """The same for a method that walks.

    Attributes:
        plan: The request, taken apart.
        walk: What is asked of the walk.
        started: `time.perf_counter` when the request came in.
        window: The groups of all documents with a place, once they are known, where the request collapses.
    """

    plan: SearchPlan
    walk: Asked
    started: float
    window: WindowGroups | None = None


class Rescoring:
    """Turns the engine's answers into rescored ones.

    Args:
        scorer: Scores windows.
        walks: Answers methods that walk.
        default_timeout_ms: Scoring budget of a request that names none.
        tuned: Parameters of a request that gives none.
        metrics: Told about stages and fallbacks.
    """

    def __init__(
        self, scorer: WindowScorer, walks: Walks, default_timeout_ms: float, tuned: TunedDefaults, metrics: Metrics
    ) -> None:
        self._scorer = scorer
        self._walks = walks
        self._default_timeout_ms = default_timeout_ms
        self._tuned = tuned
        self._metrics = metrics

    def begin(self, plan: SearchPlan, started: float, *, encode: bool = True) -> Search | WalkSearch:
        """Check the method's name and parameters, and start to encode the query.

        Args:
            plan: The request, taken apart.
            started: `time.perf_counter` when the request came in.
            encode: Whether the query is encoded beside the first pass, not after it.

        Raises:
            InvalidRequest: There is no such method, or it has no such parameters.
        """
        walk = self._walks.begin(plan)
        if walk is not None:
            return WalkSearch(plan, walk, started)
        rescorer = registry.load(plan.section.method)
        params, tuned = self._tuned.parse(rescorer, plan.section.params)
        method = Method(rescorer, params, plan.section.detail)
        search = Search(plan, method, tuned, started)
        if plan.page.fetch and encode:
            search.begun = self._scorer.begin_encoding(method, plan.texts)
        return search

    async def finish(
        self, search: Search | WalkSearch, answer: dict[str, Any], caller: Caller, first_pass_ms: float
    ) -> bool:
        """Put the engine's answer into the method's order, in place, and return whether that was done.

        Args:
            search: The search.
            answer: The engine's decoded answer to the search's plan.
            caller: In whose name documents are read.
            first_pass_ms: What the engine's answer took.

        Raises:
            InvalidRequest: The index lacks what the method needs, or has another encoder.
            EsTtcError: Scoring failed or was late, and the request says ``on_error: fail``.
        """
        took = Took(first_pass=first_pass_ms)
        if isinstance(search, WalkSearch):
            budget = self._budget_ms(search)
            done = await self._walks.finish(search.walk, search.plan, answer, caller, took, budget / 1000)
            search.window = done.window
            return done.applied
        began = time.perf_counter()
        hits = answer["hits"]["hits"]
        collapse = search.plan.collapse
        groups = None if collapse is None else groups_of(hits, collapse.field)
        outcome = await self._score(search, hits, caller, took)
        if isinstance(outcome, EsTtcError):
            _cut_first_pass(answer, search, groups)
        else:
            await self._reorder(answer, search, outcome, groups)
        answer["ttc"] = _summary(search, outcome, len(hits), took)
        if isinstance(answer.get("took"), int):
            answer["took"] += round((time.perf_counter() - began) * 1000)
        for stage, ms in took.as_dict().items():
            self._metrics.stage_seconds.labels(stage).observe(ms / 1000)
        if isinstance(outcome, EsTtcError):
            self._metrics.fallbacks.labels(outcome.type).inc()
            log.warning("first pass answered", method=search.plan.section.method, reason=str(outcome))
        else:
            self._metrics.skipped(outcome.skipped.values())
        return not isinstance(outcome, EsTtcError)

    def _budget_ms(self, search: Search | WalkSearch) -> float:
        plan = search.plan
        return budget_ms(plan.section.timeout_ms or self._default_timeout_ms, plan.timeout_ms, search.started)

    async def _score(
        self, search: Search, hits: Sequence[dict[str, Any]], caller: Caller, took: Took
    ) -> Scored | EsTtcError:
        """Return the scores, or the reason why the first pass stands."""
        budget = self._budget_ms(search)
        try:
            async with asyncio.timeout(budget / 1000):
                return await self._scorer.score(hits, search.method, search.plan.texts, search.begun, caller, took)
        except InvalidRequest:
            raise
        except TimeoutError:
            reason: EsTtcError = DeadlineExceeded(f"scoring took longer than its budget of {budget:.0f} ms")
        except EsTtcError as error:
            reason = error
        except Exception as error:  # noqa: BLE001 - whatever fails of ours, the engine's ranking is there to answer
            log.error("scoring failed", method=search.plan.section.method, exc_info=error)
            reason = ScoringError(f"scoring failed: {type(error).__name__}: {error}")
        if search.plan.section.on_error == "fail":
            raise reason
        return reason

    async def _reorder(
        self, answer: dict[str, Any], search: Search, scored: Scored, groups: Sequence[Group] | None
    ) -> None:
        plan, section = search.plan, search.plan.section
        hits = answer["hits"]["hits"]
        first_pass = np.array([hit.get("_score") or 0.0 for hit in hits], dtype=np.float32)
        ranking = ranking_of(section, first_pass, scored, plan.page.block)
        if groups is not None:
            ranking = collapsed(ranking, groups)
            search.window = window_groups(groups, plan.page.fetch, first_pass, ranking)
        page = slice(plan.page.start, plan.page.start + plan.page.size)
        details = await self._details(search, scored, ranking, page)
        shown = []
        for place, score in zip(ranking.order[page].tolist(), map(shortest, ranking.scores[page]), strict=True):
            hit = hits[place]
            rescored = shortest(scored.values[place]) if scored.mask[place] else None
            if plan.explain:
                hit["_explanation"] = explained(
                    score, section.method, section.score_mode, rescored, hit.get("_explanation")
                )
            if section.detail:
                hit["_ttc"] = {"first_pass_rank": place + 1, "first_pass_score": hit.get("_score")}
                hit["_ttc"] |= details.get(place, {})
                if place in scored.stale:
                    hit["_ttc"]["stale"] = True
                if place in scored.skipped:
                    hit["_ttc"]["skipped"] = scored.skipped[place].value
            hit["_score"] = score
            shown.append(hit)
        answer["hits"]["hits"] = shown
        if len(ranking.scores) and answer["hits"].get("max_score") is not None:
            answer["hits"]["max_score"] = shortest(ranking.scores[0])

    async def _details(
        self, search: Search, scored: Scored, ranking: Ranking, page: slice
    ) -> dict[int, dict[str, Any]]:
        """Return what the method shows about the page's documents, by first-pass place."""
        if not search.plan.section.detail:
            return {}
        position = {int(place): number for number, place in enumerate(np.flatnonzero(scored.mask))}
        places = [place for place in ranking.order[page].tolist() if place in position]
        positions = [position[place] for place in places]
        try:
            details = await self._scorer.details(scored, search.method, positions)
        except Exception as error:  # noqa: BLE001 - anyone's method may raise; the ranking stands without its details
            log.error("detail failed", method=search.plan.section.method, exc_info=error)
            return {}
        return {
            place: with_field_name(detail, scored.fields[number] if scored.fields else ())
            for place, number, detail in zip(places, positions, details, strict=True)
        }


def ranking_of(section: Section, first_pass: Float32, scored: Scored, block: int) -> Ranking:
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


def budget_ms(asked: float, timeout_ms: float | None, started: float) -> float:
    """Return a budget, cut so that there is time left to answer within the caller's own timeout.

    Args:
        asked: The budget, in ms.
        timeout_ms: The caller's own search timeout, or None.
        started: `time.perf_counter` when the request came in.
    """
    if timeout_ms is None:
        return asked
    spent = (time.perf_counter() - started) * 1000
    return max(0.0, min(asked, timeout_ms - spent - _TIME_TO_ANSWER_MS))


def add_to_first_pass(answer: dict[str, Any], ms: float) -> None:
    """Count the time of the page's own hits, which the engine answered after the scores."""
    answer["ttc"]["took"]["first_pass"] = round(answer["ttc"]["took"]["first_pass"] + ms, 2)
    if isinstance(answer.get("took"), int):
        answer["took"] += round(ms)


def with_field_name(detail: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Replace the ordinal of a text field by its name."""
    ordinal = detail.get("field")
    if isinstance(ordinal, int) and 0 <= ordinal < len(fields):
        return {**detail, "field": fields[ordinal]}
    return detail


def _cut_first_pass(answer: dict[str, Any], search: Search, groups: Sequence[Group] | None) -> None:
    plan = search.plan
    hits = answer["hits"]["hits"]
    places = list(range(len(hits)))
    if groups is not None:
        places = firsts(groups).tolist()
        search.window = window_groups(groups, plan.page.fetch, np.zeros(0, dtype=np.float32), None)
    places = places[plan.page.start : plan.page.start + plan.page.size]
    for place in places:
        hit = hits[place]
        if "_explanation" in hit:
            hit["_explanation"] = without_guard(hit["_explanation"])
        if plan.section.detail:
            hit["_ttc"] = {"first_pass_rank": place + 1, "first_pass_score": hit.get("_score")}
    answer["hits"]["hits"] = [hits[place] for place in places]


def groups_beyond(search: Search | WalkSearch) -> dict[str, Any] | None:
    """Return the request for the page's groups that the window holds no document of, or None where there are none."""
    plan = search.plan
    if plan.collapse is None or search.window is None or not plan.page.size:
        return None
    return rest_of_page(plan.body, plan.collapse, search.window, plan.page.start, plan.page.size)


def add_groups(answer: dict[str, Any], search: Search | WalkSearch, beyond: Mapping[str, Any], ms: float) -> None:
    """Put the engine's answer to :func:`groups_beyond` behind the window's groups.

    Args:
        answer: The rescored answer, which is added to.
        search: The search.
        beyond: The engine's decoded answer.
        ms: What it took.
    """
    plan, section = search.plan, search.plan.section
    if plan.collapse is None or search.window is None:
        return
    page = plan.page
    for hit, score in following(beyond["hits"]["hits"], plan.collapse.field, search.window, page.start, page.size):
        shown = shortest(score)
        if section.detail:
            hit["_ttc"] = {"first_pass_score": hit.get("_score")}
        if plan.explain and answer["ttc"]["applied"]:
            engine = hit.get("_explanation")
            why = "a group without a document in the window, kept below those that have one"
            hit["_explanation"] = explained(shown, section.method, section.score_mode, None, engine, unscored=why)
        hit["_score"] = shown
        answer["hits"]["hits"].append(hit)
    add_to_first_pass(answer, ms)


def hide(hits: Sequence[dict[str, Any]], plan: SearchPlan) -> None:
    """Take out of the hits what only we had asked for."""
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


def _summary(search: Search, outcome: Scored | EsTtcError, considered: int, took: Took) -> dict[str, Any]:
    summary: dict[str, Any] = {"method": search.plan.section.method, "applied": not isinstance(outcome, EsTtcError)}
    summary["window"] = considered
    if search.tuned:
        summary["tuned"] = dict(search.tuned)
    if isinstance(outcome, EsTtcError):
        return summary | {"scored": 0, "reason": str(outcome), "took": took.as_dict()}
    summary["scored"] = int(outcome.mask.sum())
    if outcome.stale:
        summary["stale"] = len(outcome.stale)
    if outcome.skipped:
        summary["skipped"] = faults.summary(outcome.skipped.values())
    if outcome.encoder is not None:
        summary |= {"encoder": outcome.encoder, "features_from_memory": outcome.from_memory}
    return summary | {"took": took.as_dict()}

"""The order of a scored window, without a request: from scores to ranks, groups and what is cut. Pure numpy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.relevance import Calibration
from es_ttc.serving.features.scores import WindowScores, first_pass_scores
from es_ttc.serving.plan.plan import SearchPlan
from es_ttc.serving.rescore.candidates import JoinedCandidates
from es_ttc.serving.rescore.collapse import WindowGroups, collapsed, firsts, groups_of, window_groups
from es_ttc.serving.rescore.parts import Turns, in_turns
from es_ttc.serving.rescore.ranking import Ints, OrderedScores, as_float32, ranking_of
from es_ttc.serving.rescore.relevance import cut_by_relevance
from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class ScoredWindow:
    """The window's hits, of which the first are pinned, the candidates, then the other hits of the first pass.

    Attributes:
        places: For each hit its place in the first pass, from 0; None for a candidate.
        scores: The scores of the window's hits and the candidates.
        relevance: ``(n,)`` their relevance, NaN where it is unknown; None without a calibration.
        values: ``(n,)`` the method's scores as they are combined.
        factors: ``(n,)`` what the query says besides its words makes of them; None if it says nothing.
        parts: The window of each part of the question; empty if it is not ranked by parts.
    """

    hits: Sequence[dict[str, Any]]
    places: Sequence[int | None]
    candidates: JoinedCandidates
    scores: WindowScores
    pinned: int
    relevance: Float32 | None
    values: Float32
    factors: Float32 | None
    parts: "Sequence[ScoredWindow]" = ()

    @property
    def final(self) -> Float32:
        """The method's scores, times the factors of the query."""
        return self.values if self.factors is None else as_float32(self.values.astype(np.float64) * self.factors)

    @property
    def complete_candidates(self) -> JoinedCandidates:
        """The candidates that have the features which the method needs; the others are left out."""
        complete = self.scores.complete
        return self.candidates.only(complete[len(complete) - len(self.candidates.hits) :].tolist())


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a window.

    Attributes:
        ranking: The hits that are shown on some page, best first.
        buried: ``(n,)`` which hits the functions of the query score 0: they stay below the scored ones.
        groups: The groups of the ranked hits, if the request collapses.
        relevance: What the response tells of relevance; empty without a calibration.
        tied: Whether hits have equal scores.
        turns: The turns of the question's parts; None if it is not ranked by parts.
    """

    ranking: OrderedScores
    buried: NDArray[np.bool_]
    groups: WindowGroups | None
    relevance: Mapping[str, Any]
    tied: bool
    turns: Turns | None = None


def of_parts(scores: WindowScores, parts: Sequence[ScoredWindow]) -> ScoredWindow:
    """Return the window of a question; each hit's score and relevance are those by its best part."""
    values = np.max([part.values for part in parts], axis=0)
    known = [part.relevance for part in parts if part.relevance is not None]
    relevance = np.max(known, axis=0) if known else None
    return replace(parts[0], scores=scores, values=values, relevance=relevance, parts=parts)


def order(plan: SearchPlan, window: ScoredWindow, calibration: Calibration | None, ties: Ints | None = None) -> Order:
    """Return the order of a window; ``ties``, ``(n,)``, orders hits with equal scores, None for first-pass order."""
    section, scores = plan.section, window.scores
    first_pass = np.concatenate((scores.first_pass, first_pass_scores(window.hits[len(scores.first_pass) :])))
    in_first_pass = np.array([place is not None for place in window.places], np.bool_)
    buried = (first_pass <= 0) & in_first_pass & plan.changes_scores
    mask = scores.mask & ~buried[: len(scores.mask)]
    rankings = [
        _without_incomplete_candidates(ranking_of(section, first_pass, part.final, mask, window.pinned, ties), window)
        for part in window.parts or [window]
    ]
    tied = any(len(np.unique(ranking.scores)) < len(ranking.scores) for ranking in rankings)
    turns = in_turns(rankings, len(window.hits)) if window.parts else None
    ranking = rankings[0] if turns is None else turns.ranking
    relevance: dict[str, Any] = {}
    if window.relevance is not None and calibration is not None:
        ranking, relevance = cut_by_relevance(
            ranking, window.relevance, calibration, section.min_relevance, window.pinned
        )
    groups = None
    if plan.collapse is not None:
        of_hits = groups_of(window.hits, plan.collapse.field)
        ranking = collapsed(ranking, of_hits)
        own = list(compress(of_hits, in_first_pass))
        beyond = [of_hits[number] for number in ranking.order.tolist() if not in_first_pass[number]]
        groups = window_groups(own, plan.page.fetch, first_pass[in_first_pass], ranking, beyond=beyond)
        if section.min_relevance is not None:
            groups = replace(groups, complete=True)  # groups outside the window have no relevance
    return Order(ranking, buried, groups, relevance, tied, turns)


def first_pass_order(plan: SearchPlan, hits: Sequence[Mapping[str, Any]]) -> tuple[list[int], WindowGroups | None]:
    """Return the places of the hits of a page in the engine's order, and the groups of all hits."""
    places, groups = list(range(len(hits))), None
    if plan.collapse is not None:
        of_hits = groups_of(hits, plan.collapse.field)
        places = firsts(of_hits).tolist()
        groups = window_groups(of_hits, plan.page.fetch, np.zeros(0, np.float32), None)
    return places[plan.page.ranks], groups


def _without_incomplete_candidates(ranking: OrderedScores, window: ScoredWindow) -> OrderedScores:
    """Return a ranking without candidates that lack a feature which the method needs."""
    if not window.candidates.hits:
        return ranking
    places, complete = window.places, window.scores.complete
    shown = [places[number] is not None or bool(complete[number]) for number in ranking.order.tolist()]
    return OrderedScores(ranking.order[shown], ranking.scores[shown])

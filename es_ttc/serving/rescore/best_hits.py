"""How well the best hit of each part of a question does, and which parts no document answers. Pure numpy.

Without judgements two things can be said. The *margin* is how far the best hit stands above the window: blend's mean of
z-scores. The *closeness* is its cosine with the part over the greatest such cosine of all parts, which are queries of
the same collection, so that cosines can be compared. Measured in docs/results/parts.md.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from es_ttc.rescorers.relevance import MIN_WINDOW
from es_ttc.serving.features.scores import WindowScores
from es_ttc.serving.rescore.order import Order, ScoredWindow
from es_ttc.serving.rescore.relevance import shown_relevance
from es_ttc.vectors.tokens import Float32

MIN_MARGIN = 2.0
"""Of a best hit, times its closeness, from which on a part is not open; chosen on training queries."""
MIN_RELEVANCE = 0.1
"""Of a best hit from which on a part is not open, in an index with a calibration; chosen on training queries."""
_COSINES = ("late_interaction", "dense")


def best_of_parts(window: ScoredWindow, order: Order) -> list[dict[str, Any]]:
    """Return for each part the rank of its best hit, from 1, and how well that does."""
    assert order.turns is not None  # noqa: S101 - asked for parts alone
    scored = window.scores.mask & ~order.buried[: len(window.scores.mask)]
    scored[: window.pinned] = False
    if not scored.any():
        return [{"part": part, "rank": None} for part in range(len(window.parts))]
    ranks = np.where(scored, order.turns.ranks[:, : len(scored)], len(window.hits) + 1)
    best = ranks.argmin(axis=1).tolist()
    closeness = closeness_of([_cosine(part.scores, place) for part, place in zip(window.parts, best, strict=True)])
    return [
        {"part": number, "rank": _rank(order, place), **_measures(part, place, close)}
        for number, (part, place, close) in enumerate(zip(window.parts, best, closeness, strict=True))
    ]


def is_open(margin: float, closeness: float, relevance: float | None) -> bool:
    """Return whether the best hit of a part is no better than what a part without an answer has."""
    return margin * closeness < MIN_MARGIN if relevance is None else relevance < MIN_RELEVANCE


def _measures(part: ScoredWindow, place: int, closeness: float) -> dict[str, Any]:
    """Return what is known of a part's best hit; nothing without blend's signals."""
    margin = _signal(part.scores, "blend", place)
    if math.isnan(margin):
        return {}
    relevance = None if part.relevance is None else shown_relevance(part.relevance, place)
    known = {} if relevance is None else {"relevance": relevance}
    measures = {"margin": round(margin, 2), "closeness": round(closeness, 2)}
    if relevance is None and int(part.scores.mask.sum()) < MIN_WINDOW:
        return measures
    return {**measures, **known, "open": is_open(margin, closeness, relevance)}


def closeness_of(cosines: list[float]) -> list[float]:
    """Return each cosine over the greatest; 1 for those that are not known."""
    greatest = max((cosine for cosine in cosines if not math.isnan(cosine)), default=0.0)
    return [1.0 if math.isnan(cosine) or greatest <= 0 else max(cosine, 0.0) / greatest for cosine in cosines]


def _cosine(scores: WindowScores, place: int) -> float:
    name = next((name for name in _COSINES if name in scores.signals), "")
    return _signal(scores, name, place)


def _signal(scores: WindowScores, name: str, place: int) -> float:
    """Return a signal of the hit at a place; NaN where it has none."""
    signals: Mapping[str, Float32] = scores.signals
    return float(signals[name][scores.mask[:place].sum()]) if name in signals else float("nan")


def _rank(order: Order, place: int) -> int | None:
    """Return the rank of a hit, from 1; None if it is not shown."""
    ranks = np.flatnonzero(order.ranking.order == place)
    return int(ranks[0]) + 1 if len(ranks) else None

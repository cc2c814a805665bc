"""How well the best hit of each part of a question does, and which parts no document answers. Pure numpy.

Without judgements a cosine says little by itself: how great those of answers are depends on encoder and collection. The
other parts are queries of the same collection, so a part is compared with them: by how far the cosine of its best hit
lies above the chance level, the 10th percentile of the cosines of all parts with the window's documents. Measured in
docs/results/parts.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.serving.features.scores import WindowScores
from es_ttc.serving.rescore.order import Order, ScoredWindow
from es_ttc.serving.rescore.relevance import shown_relevance
from es_ttc.vectors.tokens import Float32

MIN_CLOSENESS = 0.7
"""Closeness of a best hit from which on a part is not open: a tenth of answered parts of train queries have less."""
_CHANCE = 10
_COSINES = ("late_interaction", "dense")


def best_of_parts(window: ScoredWindow, order: Order) -> list[dict[str, Any]]:
    """Return for each part the rank of its best hit, from 1, and how well that does."""
    places = _best_places(window, order)
    if places is None:
        return [{"part": part, "rank": None} for part in range(len(window.parts))]
    positions = np.cumsum(window.scores.mask)[places] - 1
    closeness = closeness_of(_cosines(window.scores.parts), positions).tolist()
    best = []
    for part, of_part in enumerate(window.parts):
        place, signals = int(places[part]), of_part.scores.signals
        measures: dict[str, Any] = {"part": part, "rank": _rank(order, place)}
        if "blend" in signals:
            measures["margin"] = round(float(signals["blend"][positions[part]]), 2)
        if of_part.relevance is not None:
            measures["relevance"] = shown_relevance(of_part.relevance, place)
        if not np.isnan(closeness[part]):
            measures |= {"closeness": round(closeness[part], 2), "open": closeness[part] < MIN_CLOSENESS}
        best.append(measures)
    return best


def _best_places(window: ScoredWindow, order: Order) -> NDArray[np.intp] | None:
    """Return the place of each part's best hit, ``(p,)``; None if no document is ranked by its scores."""
    assert order.turns is not None  # noqa: S101 - asked for parts alone
    scored = window.scores.mask & ~order.buried[: len(window.scores.mask)]
    scored[: window.pinned] = False
    ranks = np.where(scored, order.turns.ranks[:, : len(scored)], len(window.hits))
    return ranks.argmin(axis=1) if scored.any() else None


def closeness_of(cosines: Float32, positions: Sequence[int] | NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the closeness of each part's best hit, ``(p,)``; NaN if it is not known.

    Args:
        cosines: ``(p, k)`` those of p parts with the k documents of their window; NaN where one is not known.
        positions: ``(p,)`` the document that is each part's best hit.
    """
    best = np.take_along_axis(cosines, np.asarray(positions)[:, np.newaxis], axis=1)[:, 0].astype(np.float64)
    if np.isnan(best).any():
        return np.full(len(best), np.nan)
    above_chance = best - np.nanpercentile(cosines, _CHANCE)
    of_others = (above_chance.sum() - above_chance) / (len(best) - 1)
    closeness: NDArray[np.float64] = np.divide(
        above_chance, of_others, out=np.full(len(best), np.nan), where=of_others > 0
    )
    return closeness


def _cosines(parts: Sequence[WindowScores]) -> Float32:
    """Return the cosines of parts with the window's documents, ``(p, k)``; NaN without a signal that has them."""
    names = [name for name in _COSINES if name in parts[0].signals]
    if not names:
        return np.full((len(parts), len(parts[0].window)), np.nan, np.float32)
    return np.stack([part.signals[names[0]] for part in parts])


def _rank(order: Order, place: int) -> int | None:
    """Return the rank of a hit, from 1; None if it is not shown."""
    ranks = np.flatnonzero(order.ranking.order == place)
    return int(ranks[0]) + 1 if len(ranks) else None

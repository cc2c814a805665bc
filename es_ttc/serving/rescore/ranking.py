"""Rankings of documents by two scores: scores combined, ranks reordered, scores that never rise. Pure numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.serving.request.section import ScoreMode, Section
from es_ttc.vectors.tokens import Float32

Ints = NDArray[np.intp]

_PINNED_RATIO = 1000.0
_MAX_POWER = 4.0
_PINNED_QUERY = (2.0**127, 2.0**127 * 1.01)
"""Scores that Elasticsearch gives to the documents of `pinned` and `rule`."""

_GREATEST = np.finfo(np.float32).max
_COMBINED: Mapping[ScoreMode, Callable[[NDArray[np.float64], NDArray[np.float64]], Any]] = {
    ScoreMode.REPLACE: lambda first, second: second,  # noqa: ARG005 - first-pass scores are not used
    ScoreMode.TOTAL: np.add,
    ScoreMode.MULTIPLY: np.multiply,
    ScoreMode.AVG: lambda first, second: (first + second) / 2,
    ScoreMode.MAX: np.maximum,
    ScoreMode.MIN: np.minimum,
}


@dataclass(frozen=True, slots=True)
class OrderedScores:
    """The whole first pass, reordered.

    Attributes:
        order: ``(n,)`` first-pass ranks, best first: a permutation.
        scores: ``(n,)`` float32, the score at each place: not negative, never rising.
    """

    order: Ints
    scores: Float32


def combine(
    mode: ScoreMode, first_pass: Float32, rescored: Float32, *, query_weight: float, rescore_query_weight: float
) -> Float32:
    """Return both scores, each ``(k,)``, combined as in the engines' native rescorer: weighted first.

    ``replace`` uses the weighted rescored score only.
    """
    first = first_pass.astype(np.float64) * query_weight
    second = rescored.astype(np.float64) * rescore_query_weight
    return as_float32(_COMBINED[mode](first, second))


def as_float32(scores: NDArray[np.float64]) -> Float32:
    """Return scores as the engines have them; a greater one is the greatest that they can have."""
    return np.minimum(scores, _GREATEST).astype(np.float32)


def stretched(scores: Float32, words: Float32, found: int) -> Float32:
    """Return a method's scores to a power of 1 to 4, so that factors weigh as much as beside the words' scores.

    A method's scores may differ less than the words' do: the same factor would then move documents further. Both are
    compared by the spread of their logarithms over the first `found` documents, those of the first pass.
    """
    known = (words[:found] > 0) & (scores[:found] > 0)
    own, of_words = (float(np.log(one[:found][known]).std()) if known.any() else 0.0 for one in (scores, words))
    return scores ** np.float32(np.clip(of_words / own, 1, _MAX_POWER) if own else 1)


def pinned_count(first_pass: Float32) -> int:
    """Return how many documents at the beginning of a window are pinned: they stay on top in first-pass order.

    They are those before the last place whose score is more than 1,000 times the next one (and more than 1,000), and
    those with a score that only Elasticsearch's `pinned` and `rule` give.

    Args:
        first_pass: ``(n,)`` the engine's scores of the window.
    """
    scores = first_pass.astype(np.float64)
    by_query = (scores >= _PINNED_QUERY[0]) & (scores < _PINNED_QUERY[1])
    above = scores[:-1] > _PINNED_RATIO * np.maximum(scores[1:], 1.0)
    places = np.flatnonzero(above)
    leading = len(scores) if by_query.all() else int(np.argmin(by_query))
    return max(leading, int(places[-1]) + 1 if len(places) else 0)


def rank(
    first_pass: Float32, final: Float32, scored: NDArray[np.bool_], pinned: int = 0, ties: Ints | None = None
) -> OrderedScores:
    """Reorder a first pass, without its first, pinned documents.

    The scored documents come first, by final score, then the others as they were. A run of scores that would begin
    above the place before it is scaled down as a whole.

    Args:
        first_pass: ``(n,)`` the engine's scores, finite and not negative.
        final: ``(n,)`` final scores, finite and not negative; not used for documents without a score.
        scored: ``(n,)`` which documents have a final score.
        pinned: Number of documents at the beginning that keep their place and their score.
        ties: ``(n,)`` the order of documents with equal final scores; None for first-pass order.
    """
    rest = np.arange(pinned, len(first_pass))
    with_score, without = rest[scored[rest]], rest[~scored[rest]]
    places = with_score if ties is None else ties[with_score]
    by_score = with_score[np.lexsort((places, -final[with_score]))]
    runs, floor = [], np.float32(np.inf)
    for run, values in ((np.arange(pinned), first_pass), (by_score, final), (without, first_pass)):
        if len(run):
            runs.append(below(values[run], floor))
            floor = runs[-1][-1]
    order = np.concatenate((np.arange(pinned), by_score, without))
    return OrderedScores(order, np.concatenate(runs) if runs else np.zeros(0, np.float32))


def ranking_of(
    section: Section,
    first_pass: Float32,
    scores: Float32,
    mask: NDArray[np.bool_],
    pinned: int = 0,
    ties: Ints | None = None,
) -> OrderedScores:
    """Return a first pass, ``(n,)``, in the order of the final scores; see :func:`rank`.

    ``scores`` and ``mask``, ``(m,)``, are of the first m documents; the others have no score of the method.
    """
    every, scored = np.zeros(len(first_pass), np.float32), np.zeros(len(first_pass), np.bool_)
    every[: len(scores)], scored[: len(mask)] = scores, mask
    final = combine(
        section.score_mode,
        first_pass,
        every,
        query_weight=section.query_weight,
        rescore_query_weight=section.rescore_query_weight,
    )
    return rank(first_pass, final, scored, pinned, ties)


def below(scores: Float32, floor: np.float32) -> Float32:
    """Return scores that never rise, scaled down if needed so that the first is not greater than ``floor``.

    Args:
        scores: ``(m,)``, m >= 1, not negative; they may rise in first-pass order (several indices, boosts).
        floor: The score of the place before.
    """
    falling: Float32 = np.minimum.accumulate(scores)
    if falling[0] <= floor:
        return falling
    scaled = falling.astype(np.float64) * (float(floor) / float(falling[0]))
    return np.minimum(scaled.astype(np.float32), floor)

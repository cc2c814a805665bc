"""Signals of different scales made comparable over the documents of one window. Pure numpy.

Each function takes ``(k,)`` float32 scores and a ``(k,)`` bool mask of the documents that have the signal, and returns
``(k,)`` float32. A document without the signal gets the mean of the others: the signal then neither lifts nor lowers
it. A signal that tells no documents apart gives all of them the same value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
from es_ttc.vectors.tokens import Float32

Normalisation = Literal["z", "minmax", "rank"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
Mask = NDArray[np.bool_]

RRF_K = 60  # the constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)
_FLAT = 1e-6  # a spread below this is rounding
LEAD = 13.0  # what the other default signals cannot outweigh beside the z-scores of a single match
_OUTLIER = 4.0  # z-score of the first pass from which on a document stands out
MAX_LEADING = 12  # documents that a query's words single out at most
_TELLING_DROPS = (0.05, 0.1)


def logistic(values: NDArray[np.floating]) -> Float32:
    """Return ``1 / (1 + exp(-value))``: sums of z-scores as they are shown, in (0, 1) and in the same order."""
    shown: Float32 = (1 / (1 + np.exp(-values.astype(np.float64)))).astype(np.float32)
    return shown


def z_scores(scores: Float32, known: Mask) -> Float32:
    """Return the distance of each score from their mean, in standard deviations."""
    values = scores[known]
    # In float32 the mean of equal scores can be another number than they are.
    spread = float(values.std(dtype=np.float64)) if len(values) else 0.0
    if spread < _FLAT:
        return np.zeros(len(scores), np.float32)
    return _filled((values - values.mean()) / np.float32(spread), known)


def z_scores_of_words(scores: Float32, *, few_words: bool) -> Float32:
    """Return z-scores of the first pass, ``(k,)``, higher for documents that the query's words single out.

    If the greatest z is above 4, all are multiplied by a quarter of it: the score of such a document comes from a word
    that hardly another one has. Documents that :func:`leading` finds are raised by up to `LEAD` more.
    """
    z = z_scores(scores, np.ones(len(scores), np.bool_))
    outlier = np.float32(max(1.0, float(z.max(initial=0.0)) / _OUTLIER))
    return z * outlier + np.float32(LEAD) * leading(scores, few_words=few_words)


def leading(scores: Float32, *, few_words: bool) -> Float32:
    """Return how surely the first pass's scores single documents out, ``(k,)`` in [0, 1].

    1 for the only document with a score above 0. In a query of few words also the documents above the greatest drop
    among the first twelve scores: 0 if the drop is a twentieth of the greatest score, 1 if it is a tenth.
    """
    best = np.sort(scores)[::-1].astype(np.float64)
    if len(best) < 2 or best[0] <= 0:
        return np.zeros(len(scores), np.float32)
    if best[1] <= 0:
        return (scores > 0).astype(np.float32)
    drops = -np.diff(best[: MAX_LEADING + 1]) / best[0]
    place = int(drops.argmax())
    sure = float(np.interp(drops[place], _TELLING_DROPS, (0, 1))) if few_words else 0.0
    return np.where(scores >= best[place], np.float32(sure), np.float32(0))


def min_max(scores: Float32, known: Mask) -> Float32:
    """Return each score's place between the least, 0, and the greatest, 1."""
    values = scores[known]
    reach = float(np.ptp(values)) if len(values) else 0.0
    if reach < _FLAT:
        return np.zeros(len(scores), np.float32)
    return _filled((values - values.min()) / np.float32(reach), known)


def reciprocal_ranks(scores: Float32, known: Mask) -> Float32:
    """Return ``1 / (60 + rank)`` of each score; equal scores share the best rank among them."""
    return _filled(reciprocal_rank_fusion([scores[known][np.newaxis]], RRF_K)[0], known)


def _filled(values: Float32, known: Mask) -> Float32:
    filled = np.full(len(known), values.mean() if len(values) else 0, np.float32)
    filled[known] = values
    return filled


NORMALISED: Mapping[Normalisation, Callable[[Float32, Mask], Float32]] = {
    "z": z_scores,
    "minmax": min_max,
    "rank": reciprocal_ranks,
}


def comparable(name: str, scores: Float32, known: Mask, normalise: Normalisation, *, few_words: bool) -> Float32:
    """Return a signal made comparable; z-scores of `lexical` are those of :func:`z_scores_of_words`."""
    if name == "lexical" and normalise == "z":
        return z_scores_of_words(scores, few_words=few_words)
    return NORMALISED[normalise](scores, known)


def comparable_columns(names: Sequence[str], scores: Float32, normalise: Normalisation, *, few_words: bool) -> Float32:
    """Return several signals made comparable, ``(k, s)``; NaN where a document does not have one."""
    columns = [
        comparable(name, np.nan_to_num(column), ~np.isnan(column), normalise, few_words=few_words)
        for name, column in zip(names, np.ascontiguousarray(scores.T), strict=True)
    ]
    return np.stack(columns, axis=1)

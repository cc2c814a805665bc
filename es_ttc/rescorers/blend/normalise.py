"""Signals of different scales made comparable over the documents of one window. Pure numpy.

Each function takes ``(k,)`` float32 scores and a ``(k,)`` bool mask of the documents that have the signal, and returns
``(k,)`` float32. A document without the signal gets the mean of the others: the signal then neither lifts nor lowers
it. A signal that tells no documents apart gives all of them the same value.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.programs.primitives.fusion import ranks
from es_ttc.vectors.tokens import Float32

Normalisation = Literal["z", "minmax", "rank"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
Mask = NDArray[np.bool_]

RRF_K = 60  # the constant of reciprocal rank fusion (Cormack et al., SIGIR 2009)
_FLAT = 1e-6  # a spread below this is rounding


def logistic(values: NDArray[np.floating]) -> Float32:
    """Return ``1 / (1 + exp(-value))``: sums of z-scores as they are shown, in (0, 1) and in the same order."""
    shown: Float32 = (1 / (1 + np.exp(-values.astype(np.float64)))).astype(np.float32)
    return shown


def z_scores(scores: Float32, known: Mask) -> Float32:
    """Return the distance of each score from their mean, in standard deviations."""
    values = scores[known]
    spread = float(values.std()) if len(values) else 0.0
    if spread < _FLAT:
        return np.zeros(len(scores), np.float32)
    return _filled((values - values.mean()) / np.float32(spread), known)


def min_max(scores: Float32, known: Mask) -> Float32:
    """Return each score's place between the least, 0, and the greatest, 1."""
    values = scores[known]
    reach = float(np.ptp(values)) if len(values) else 0.0
    if reach < _FLAT:
        return np.zeros(len(scores), np.float32)
    return _filled((values - values.min()) / np.float32(reach), known)


def reciprocal_ranks(scores: Float32, known: Mask) -> Float32:
    """Return ``1 / (60 + rank)`` of each score; equal scores share the best rank among them."""
    return _filled((1 / (RRF_K + ranks(scores[known][np.newaxis])[0])).astype(np.float32), known)


def _filled(values: Float32, known: Mask) -> Float32:
    filled = np.full(len(known), values.mean() if len(values) else 0, np.float32)
    filled[known] = values
    return filled


NORMALISED: Mapping[Normalisation, Callable[[Float32, Mask], Float32]] = {
    "z": z_scores,
    "minmax": min_max,
    "rank": reciprocal_ranks,
}


def comparable(scores: Float32, normalise: Normalisation) -> Float32:
    """Return several signals made comparable, ``(k, s)``; NaN where a document does not have one."""
    columns = [
        NORMALISED[normalise](np.nan_to_num(column), ~np.isnan(column)) for column in np.ascontiguousarray(scores.T)
    ]
    return np.stack(columns, axis=1)

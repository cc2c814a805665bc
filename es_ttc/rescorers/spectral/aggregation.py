"""Reduce the cosines at every position to one number a scale: the maximum, and the milder choices of section VIII-B.

Functions take ``(..., width)`` cosines, NaN after a document's last position, and ``counts``, its number of positions.
"""

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32, Float64

Counts = NDArray[np.intp]


def maximum(cosines: Float32) -> Float32:
    """The greatest cosine over positions: sigma_L of section III-C."""
    greatest: Float32 = np.fmax.reduce(cosines, axis=-1)
    return greatest


def top_mean(cosines: Float32, counts: Counts, m: int) -> Float32:
    """The mean of the m greatest cosines over positions, of all where there are fewer."""
    width = cosines.shape[-1]
    best = np.sort(cosines, axis=-1)[..., ::-1]  # descending, the NaNs first
    rank = np.arange(width) - (width - counts[..., None])
    taken = (rank >= 0) & (rank < m)
    total: Float32 = np.sum(best, axis=-1, where=taken) / np.minimum(counts, m).astype(np.float32)
    return total


def percentile(cosines: Float32, counts: Counts, p: float) -> Float32:
    """The p-th percentile over positions, between two of them by linear interpolation; the maximum for p = 100."""
    ordered = np.sort(cosines, axis=-1)  # ascending, the NaNs last
    place = np.broadcast_to((counts - 1) * (p / 100), cosines.shape[:-1])[..., None]
    below = np.floor(place).astype(np.intp)
    above = np.ceil(place).astype(np.intp)
    low = np.take_along_axis(ordered, below, axis=-1)
    high = np.take_along_axis(ordered, above, axis=-1)
    value: Float32 = (low + (high - low) * (place - below).astype(np.float32))[..., 0]
    return value


def pool(scores: Float32, params: SpectralParams) -> Float32:
    """Return one score of the scores of all scales, which ascend as ``params.scales``: ``(..., s)`` to ``(...)``."""
    if params.pool == "max":
        greatest: Float32 = scores.max(axis=-1)
        return greatest
    wide = np.ascontiguousarray(scores, dtype=np.float64)  # a mean of equal scores is this score to the last bit
    mean: Float32 = np.sum(wide * shares(scores, params), axis=-1).astype(np.float32)
    return mean


def shares(scores: Float32, params: SpectralParams) -> Float64:
    """Return the share of each scale in the pooled score, ``(..., s)`` float64, 0 or more, sum 1."""
    if params.pool == "softmax":
        return softmax(scores.astype(np.float64) / params.temperature)
    if params.pool == "mean":
        weights = np.array(params.scale_weights or [1] * scores.shape[-1], dtype=np.float64)
        return np.broadcast_to(weights / weights.sum(), scores.shape)
    whole: Float64 = (np.arange(scores.shape[-1]) == scores.argmax(axis=-1)[..., None]).astype(np.float64)
    return whole


def softmax(values: Float64) -> Float64:
    """Return ``exp(v) / sum of exp(v)`` along the last axis."""
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    proportions: Float64 = powers / powers.sum(axis=-1, keepdims=True)
    return proportions

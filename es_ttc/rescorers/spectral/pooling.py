"""From one score a scale to one score: the maximum (section III-C), a weighted mean, or a softmax-weighted mean.

The paper has the maximum only. A mean lies between the least and the greatest score, so it is a cosine as they are.
"""

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.spectral.params import SpectralParams
from es_ttc.vectors.tokens import Float32

Float64 = NDArray[np.float64]


def pool(scores: Float32, params: SpectralParams) -> Float32:
    """Return one score for the scores of all scales, ``(..., s)`` to ``(...)``.

    Args:
        scores: ``(..., s)`` float32, the score of each scale, ascending as ``params.scales``.
    """
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

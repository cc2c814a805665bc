"""Channels that need no encoder: Fisher's direction and rank stability."""

from collections.abc import Sequence

import numpy as np

from es_ttc.rescorers.programs.primitives.fusion import ranks
from es_ttc.rescorers.programs.primitives.vectors import normalise
from es_ttc.vectors.tokens import Float32


def fisher(documents: Float32, top: Float32, bottom: Float32) -> Float32:
    """Return ``d . normalise(d_top - d_bottom)`` for every document, ``(q, n)`` (B.12).

    The paper's Fisher discriminant is this difference of ``(q, d)`` centroids, without the within-class covariance.
    """
    projected: Float32 = normalise(top - bottom) @ documents.T
    return projected


def rank_stability(channels: Sequence[Float32]) -> Float32:
    """Return minus the variance of each document's rank over channels, ``(q, n)``: 0 is perfect agreement (B.12)."""
    mean = np.zeros(channels[0].shape)
    squares = np.zeros(channels[0].shape)
    for number, channel in enumerate(channels, 1):  # Welford: one channel's ranks in memory at a time
        rank = ranks(channel)
        step = rank - mean
        mean += step / number
        squares += step * (rank - mean)
    stability: Float32 = (-squares / len(channels)).astype(np.float32)
    return stability

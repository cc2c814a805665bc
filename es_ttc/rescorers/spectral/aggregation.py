"""From the cosines at every position to one number a scale: the maximum, and the milder choices of section VIII-B.

Each function takes ``(..., width)`` cosines, NaN after a document's last position, and ``counts``, the number of
positions (1 or more), of a shape that broadcasts to ``(...)``. ``pooling`` goes on from scales to one score.
"""

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

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

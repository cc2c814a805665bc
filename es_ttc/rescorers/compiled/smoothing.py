"""Lengths of smoothed rows by the compiled loops."""

from functools import lru_cache

import numpy as np

from es_ttc.rescorers.compiled import loops
from es_ttc.rescorers.compiled.room import compute_in_room
from es_ttc.vectors.tokens import Float32


def smoothed_lengths(tokens: Float32, spectra: Float32, scales: int) -> Float32:
    """Return the length of every row of a document's token vectors, smoothed by several kernels, ``(s, n)`` float32.

    Args:
        tokens: ``(n, d)`` float32.
        spectra: ``(ceil(s / 2), 2, size)`` float32, the kernels'; see
            :func:`es_ttc.rescorers.spectral.smoothing.paired_spectra`.
        scales: The number s of kernels.
    """
    lengths = np.empty((scales, len(tokens)), dtype=np.float32)
    given = np.ascontiguousarray(tokens), spectra, twiddles(spectra.shape[-1]), lengths
    compute_in_room(lambda room: loops.smoothed_lengths(*given, room, tokens.shape[1], scales))
    return lengths


@lru_cache(maxsize=64)
def twiddles(size: int) -> Float32:
    """Return the cosines and sines of a transform's angles, ``(2, size)`` float32."""
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)

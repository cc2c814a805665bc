"""Lengths of smoothed rows by the compiled loops."""

from functools import lru_cache

import numpy as np

from es_ttc.rescorers.compiled import loops
from es_ttc.rescorers.scratch import Scratch
from es_ttc.vectors.tokens import Float32

_ROOM_BYTES = 2**20

_scratch = Scratch()


def smoothed_lengths(tokens: Float32, spectra: Float32, scales: int) -> Float32:
    """Return the length of every row of a document's token vectors, smoothed by several kernels, ``(s, n)`` float32.

    Args:
        tokens: ``(n, d)`` float32.
        spectra: ``(ceil(s / 2), 2, size)`` float32, the kernels'; see
            :func:`es_ttc.rescorers.spectral.smoothing.paired_spectra`.
        scales: The number s of kernels.
    """
    lengths = np.empty((scales, len(tokens)), dtype=np.float32)
    rows = np.ascontiguousarray(tokens)
    given = rows, spectra, twiddles(spectra.shape[-1]), lengths
    dims = tokens.shape[1]
    room = _scratch.array("room", (_ROOM_BYTES,), np.uint8)
    needed = loops.smoothed_lengths(*given, room, dims, scales)
    if needed > len(room):
        loops.smoothed_lengths(*given, _scratch.array("room", (needed,), np.uint8), dims, scales)
    return lengths


@lru_cache(maxsize=64)
def twiddles(size: int) -> Float32:
    """Return the cosines and sines of a transform's angles, ``(2, size)`` float32."""
    angles = 2 * np.pi * np.arange(size) / size
    return np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)

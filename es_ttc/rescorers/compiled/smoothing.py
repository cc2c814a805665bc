"""Lengths of smoothed rows by the compiled loops."""

import numpy as np

from es_ttc.rescorers.compiled import loops
from es_ttc.rescorers.compiled.frequencies import transform_plan
from es_ttc.rescorers.compiled.room import compute_in_room
from es_ttc.vectors.tokens import Float32


def smoothed_lengths(tokens: Float32, spectra: Float32, size: int) -> Float32:
    """Return the length of every row of a document's token vectors, smoothed by s kernels, ``(s, n)`` float32.

    Args:
        tokens: ``(n, d)`` float32.
        spectra: ``(s, size // 2 + 1)`` float32, the kernels'; see
            :func:`es_ttc.rescorers.spectral.smoothing.half_spectra`.
    """
    scales, dims = len(spectra), tokens.shape[1]
    lengths = np.empty((scales, len(tokens)), dtype=np.float32)
    given = np.ascontiguousarray(tokens), spectra, transform_plan(size), lengths
    compute_in_room(lambda room: loops.smoothed_lengths(*given, room, dims, scales, size))
    return lengths

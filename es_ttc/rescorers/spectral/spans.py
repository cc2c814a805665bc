"""Spans: a document's smoothed token vectors at every few positions, for an engine's own kNN.

A span's vector is a row of ``k_L * E`` of section III-B, at length 1: its cosine with a query is one of those whose
maximum is the spectral score at this scale, so finding near spans finds documents that score high.
"""

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.spectral.cosines import NORM_FLOOR
from es_ttc.rescorers.spectral.norms import smoothed_columns
from es_ttc.rescorers.spectral.smoothing import IDENTITY
from es_ttc.vectors.tokens import Float32


def span_positions(length: int, stride: int) -> NDArray[np.intp]:
    """Return the tokens at the spans' centres, ``(ceil(length / stride),)``, as far from one end as from the other."""
    return np.arange((length - 1) % stride // 2, length, stride)


def span_vectors(tokens: Float32, scale: float, stride: int) -> tuple[NDArray[np.intp], Float32]:
    """Return the central tokens of a document's spans, ``(m,)``, and ``(m, d)`` unit rows, none of length 0."""
    positions = span_positions(len(tokens), stride)
    rows = np.empty((len(positions), tokens.shape[1]), dtype=np.float32)
    if scale == IDENTITY or not len(tokens):
        rows[:] = tokens[positions]
    else:
        for components, smoothed in smoothed_columns(tokens, (scale,)):
            rows[:, components] = smoothed[:, 0, positions].T
    lengths = np.linalg.norm(rows, axis=1)
    kept = lengths > NORM_FLOOR
    return positions[kept], rows[kept] / lengths[kept, None]

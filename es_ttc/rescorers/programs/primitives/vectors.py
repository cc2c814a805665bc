"""Vectors made safe and unit."""

import numpy as np

from es_ttc.vectors.tokens import Float32


def normalise(vectors: Float32) -> Float32:
    """Give rows unit length; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    norms[norms == 0] = 1
    unit: Float32 = vectors / norms
    return unit


def finite(vectors: Float32) -> Float32:
    """Set rows that hold a NaN or an infinity to zero: such a text is near nothing."""
    result: Float32 = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, np.float32(0))
    return result


def debias(vectors: Float32) -> Float32:
    """Subtract the rows' mean and make them unit again (B.4); one row, or rows that are all equal, stay as they are."""
    if len(vectors) < 2:
        return vectors
    centred: Float32 = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    squares = np.einsum("ij,ij->i", centred, centred)
    if squares.max() < _NO_SPREAD:
        return vectors
    squares[squares == 0] = 1
    centred /= np.sqrt(squares)[:, None]
    return centred


_NO_SPREAD = 1e-10  # squared length below which what is left of a vector is rounding

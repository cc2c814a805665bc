"""Row norms of smoothed token matrices: the part of the spectral score that does not depend on the query.

Convolution is linear, so ``<q, (k_L * E)[i]> = (k_L * f)[i]`` with ``f = E q``; only the length of the smoothed row is
missing to make it the cosine of section III-C, and it is the same for every query. Ingest computes and stores it once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from es_ttc.rescorers.scratch import Scratch
from es_ttc.rescorers.spectral.kernel import IDENTITY, MEAN, is_smoothing, kernel_bank, same_start
from es_ttc.rescorers.spectral.smoothing import smooth, transform_size
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, ScaleNorms, TokenVectors

DIRECT_UP_TO = 192
"""Tokens up to which one matrix product beats the transforms (384 components; benchmarks/spectral_kernel.py)."""

_CHUNK_BYTES = 2**20

_scratch = Scratch()


def scale_norms(tokens: Float32, scales: Sequence[float]) -> ScaleNorms:
    """Return ``||(k_L * E)[i]||`` for every position of a document and every scale but L = 1, whose norms are 1.

    Memory beside the input is a few MiB whatever the document's length. For scores that equal those of the stored
    vectors to rounding, give the vectors as they are stored: ``dequantise(quantise(matrix, codec))``.

    Args:
        tokens: ``(n, d)`` float32 rows; n may be 0.
        scales: Scales L in tokens, 1 or more; ``inf`` is the mean-pool endpoint.
    """
    kept = tuple(scale for scale in scales if scale != IDENTITY)
    values = np.empty((len(kept), len(tokens)), dtype=np.float32)
    if len(tokens):
        smoothing = [row for row, scale in enumerate(kept) if is_smoothing(scale)]
        if smoothing:
            norms_of = _direct if len(tokens) <= DIRECT_UP_TO else _by_transforms
            values[smoothing] = norms_of(tokens, tuple(kept[row] for row in smoothing))
        for row, scale in enumerate(kept):
            if scale == MEAN:
                values[row] = np.linalg.norm(tokens.mean(axis=0, dtype=np.float64))
    return ScaleNorms(kept, values)


def norms_of_scales(tokens: TokenVectors, stored: ScaleNorms | None, scales: Sequence[float]) -> Float32:
    """Return the norms of the wanted scales, ``(s, n)`` float32: those that are stored, the rest from the tokens.

    Raises:
        ValueError: The stored norms belong to a document of another length.
    """
    if stored is None:
        return scale_norms(dequantise(tokens), scales).values
    if stored.values.shape != (len(stored.scales), len(tokens)):
        raise ValueError(f"norms of shape {stored.values.shape} for {len(stored.scales)} scales, {len(tokens)} tokens")
    if stored.scales == tuple(scales):
        return stored.values
    missing = [scale for scale in scales if scale not in stored.scales]
    computed = scale_norms(dequantise(tokens), missing) if missing else ScaleNorms((), stored.values[:0])
    rows = dict(zip(stored.scales + computed.scales, (*stored.values, *computed.values), strict=True))
    return np.array([rows[scale] for scale in scales], dtype=np.float32).reshape(len(scales), len(tokens))


def _direct(tokens: Float32, scales: tuple[float, ...]) -> Float32:
    """One product with the Toeplitz matrices of all kernels."""
    length = len(tokens)
    smoothed = (_toeplitz(length, scales) @ tokens).reshape(len(scales), length, -1)
    return _lengths(smoothed)


def _toeplitz(length: int, scales: tuple[float, ...]) -> Float32:
    """Return ``(s * length, length)``: row i of a scale holds what ``same`` convolution weighs position i with."""
    start = same_start(length)
    diagonals = np.zeros((len(scales), 2 * length - 1), dtype=np.float32)
    diagonals[:, start : start + length] = kernel_bank(length, scales)[:, ::-1]
    rows: NDArray[np.float32] = sliding_window_view(diagonals, length, axis=1)[:, ::-1]
    return rows.reshape(-1, length)


def _by_transforms(tokens: Float32, scales: tuple[float, ...]) -> Float32:
    """Smooth a few components at a time and add up the squares."""
    length, dims = tokens.shape
    size = transform_size(length)
    squares = np.zeros((len(scales), length))
    chunk = max(1, _CHUNK_BYTES // (4 * size * len(scales)))
    for start in range(0, dims, chunk):
        columns = tokens[:, start : start + chunk].T
        signals = _scratch.array("columns", (1, len(columns), size), np.float32)
        signals[0, :, :length] = columns
        signals[0, :, length:] = 0
        smoothed = smooth(signals, (length,), scales, _scratch)[0, :, :, :length]
        squares += np.einsum("csn,csn->sn", smoothed, smoothed)
    return np.sqrt(squares).astype(np.float32)


def _lengths(rows: Float32) -> Float32:
    lengths: Float32 = np.sqrt(np.einsum("snd,snd->sn", rows, rows))
    return lengths

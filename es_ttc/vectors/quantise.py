"""Codecs of token vectors: float32, float16, int8 with one factor per row, and codes of 4 or 2 bits."""

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.codes import encode, steps_of
from es_ttc.vectors.rotation import rotate_back
from es_ttc.vectors.tokens import CODECS, Codec, Float32, TokenVectors

_FLOAT16 = np.dtype(np.float16)
_INT8_MAX = 127
_HALF_REBIAS = np.float32(2.0**112)  # float32 and float16 exponents are biased by 127 and 15


def quantise(matrix: Float32, codec: Codec) -> TokenVectors:
    """Encode token vectors in fewer bytes.

    int8 rounds each row to 127 steps of its greatest component, int4 and int2 see :mod:`es_ttc.vectors.codes`; a factor
    then restores the row's own length, so that a unit row stays one and inner products with it stay cosines.

    Args:
        matrix: ``(n, d)`` float32, unit (or zero) rows; n may be 0.
        codec: The codec: 4, 2, 1, 1/2 or 1/4 bytes per component, and 4 per row for the last three.

    Raises:
        ValueError: The matrix has not two dimensions, or contains a component that is not finite.
    """
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    if matrix.ndim != 2:
        raise ValueError(f"token vectors must be a matrix (n, d), got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("token vectors must be finite, got a NaN or an infinity")
    match codec:
        case "float32":
            return TokenVectors(matrix)
        case "float16":
            return TokenVectors(matrix.astype(np.float16))
        case "int8":
            return _int8(matrix)
        case "int4":
            return encode(matrix, 4)
        case "int2":
            return encode(matrix, 2)
    raise ValueError(f"unknown codec {codec!r}: use {', '.join(CODECS)}")


def dequantise(tokens: TokenVectors) -> Float32:
    """Return the ``(n, d)`` float32 matrix of stored values; float32 values are not copied."""
    matrix = as_stored(tokens)
    return rotate_back(matrix) if tokens.coded else matrix


def as_stored(tokens: TokenVectors) -> Float32:
    """Return the ``(n, d)`` float32 matrix of stored values, those in codes as rotated; float32 is not copied."""
    if tokens.values.dtype == np.float32:
        return tokens.values.astype(np.float32, copy=False)
    matrix = np.empty((len(tokens), tokens.dims), dtype=np.float32)
    widen(tokens, matrix)
    if tokens.scales is not None:
        matrix *= tokens.scales[:, None]
    return matrix


def widen(tokens: TokenVectors, out: Float32) -> None:
    """Write stored values as float32 into a buffer ``(n, d)``; the factors of rows are not applied.

    float16 is converted by moving its bits, several times faster than a cast that handles infinities and NaN, which
    :func:`quantise` and :func:`es_ttc.vectors.packed.unpack_tokens` exclude.
    """
    values: NDArray[np.generic] = steps_of(tokens) if tokens.coded else tokens.values
    if values.dtype != _FLOAT16:
        np.copyto(out, values)
        return
    bits = out.view(np.int32)
    np.copyto(bits, values.view(np.int16))  # sign-extends, so the sign is the highest bit after the shift
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70000001), out=bits)  # 0x8fffffff: sign, exponent and mantissa
    np.multiply(out, _HALF_REBIAS, out=out)


def _int8(matrix: Float32) -> TokenVectors:
    peaks = np.max(np.abs(matrix), axis=1, initial=0.0)
    relative = np.divide(matrix, peaks[:, None], out=np.zeros_like(matrix), where=peaks[:, None] > 0)
    values = np.rint(relative * _INT8_MAX)
    lengths = np.linalg.norm(values, axis=1)
    factors = np.divide(np.linalg.norm(relative, axis=1), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return TokenVectors(values.astype(np.int8), peaks * factors)

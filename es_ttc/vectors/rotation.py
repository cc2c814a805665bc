"""A fixed random rotation, after which the components of any unit vector are distributed about as a Gaussian's.

Signs and Hadamard transforms alternate (Ailon and Chazelle, "The Fast Johnson-Lindenstrauss Transform", 2009). A number
of components that is no power of two is covered by two overlapping blocks of one, at the beginning and at the end. The
signs are bits of a hash of the number of components, and the transform only adds and subtracts numbers one by one: so
the outcome is the same to the last bit on every machine, whatever its BLAS and vector instructions.
"""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import shake_128
from typing import NamedTuple

import numpy as np

from es_ttc.vectors.tokens import Float32

_ROUNDS = 2
_ROWS = 256  # of a block: it stays in the cache of a core


class _Step(NamedTuple):
    """Signs for all components, then a Hadamard transform of some."""

    signs: Float32  # (d, 1) float32, 1 or -1
    block: slice  # the transformed components, a power of two of them


def rotated_columns(rows: Float32) -> Iterator[tuple[slice, Float32]]:
    """Yield some hundred rows ``(n, d)`` at a time: which ones, and their rotation as columns ``(d, m)`` float32."""
    for part, columns in _columns(rows):
        for step in _steps(rows.shape[1]):
            columns *= step.signs
            _hadamard(columns[step.block])
        yield part, columns


def rotate(rows: Float32) -> Float32:
    """Return a few rows ``(n, d)`` float32, rotated: products of small matrices are quicker for them than steps."""
    rotated: Float32 = rows.astype(np.float32)
    for step in _steps(rows.shape[1]):
        rotated *= step.signs[:, 0]
        left, right = _factors(step.block.stop - step.block.start)
        block = rotated[:, step.block].reshape(-1, len(left), len(right))
        rotated[:, step.block] = (left @ block @ right).reshape(len(rows), -1)
    return rotated


def rotate_back(rows: Float32) -> Float32:
    """Return the rows whose rotation is ``(n, d)`` float32."""
    out: Float32 = np.empty(rows.shape, dtype=np.float32)
    for part, columns in _columns(rows):
        for step in reversed(_steps(rows.shape[1])):
            _hadamard(columns[step.block])
            columns *= step.signs
        out[part] = columns.T
    return out


def _columns(rows: Float32) -> Iterator[tuple[slice, Float32]]:
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        yield part, np.array(rows[part].T, dtype=np.float32, order="C")


def _hadamard(columns: Float32) -> None:
    """Transform columns of a power of two components in place, lengths kept."""
    count, width = columns.shape
    half = 1
    while half < count:
        pairs = columns.reshape(-1, 2, half, width)
        differences = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = differences
        half *= 2
    columns *= np.float32(1) / np.sqrt(np.float32(count))


@lru_cache(maxsize=16)
def _factors(count: int) -> tuple[Float32, Float32]:
    """Return two Hadamard matrices whose Kronecker product transforms so many components, a power of two of them."""
    power = count.bit_length() - 1
    pair = []
    for size in (1 << power // 2, 1 << (power - power // 2)):
        matrix: Float32 = np.eye(size, dtype=np.float32)
        _hadamard(matrix)
        pair.append(matrix)
    return pair[0], pair[1]


@lru_cache(maxsize=8)
def _steps(dims: int) -> tuple[_Step, ...]:
    size = 1 << (dims.bit_length() - 1)
    blocks = [slice(0, size)] if size == dims else [slice(0, size), slice(dims - size, dims)]
    count = _ROUNDS * len(blocks)
    hashed = shake_128(f"es-ttc rotation of {dims} components".encode()).digest(-(-count * dims // 8))
    bits = np.unpackbits(np.frombuffer(hashed, np.uint8), count=count * dims, bitorder="little")
    signs = (1 - 2 * bits.astype(np.float32)).reshape(count, dims, 1)
    return tuple(_Step(signs[place], blocks[place % len(blocks)]) for place in range(count))

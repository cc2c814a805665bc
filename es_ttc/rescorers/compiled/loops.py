"""The loops that numba compiles: from addresses of documents to their greatest cosines in one call.

They run without the interpreter's lock, check nothing and raise nothing. :mod:`es_ttc.rescorers.compiled.window` fills
the table of addresses, holds the arrays, and has checked their shapes.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from es_ttc.rescorers.compiled.fourier import compiled, transform

_Generates = Callable[..., Any]
_summing: Callable[[_Generates], _Generates] = numba.njit(
    nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}, cache=True
)
"""Compiles a function whose sums may be added up in another order, as BLAS does; always the same one for a length."""
_intrinsic: Callable[[_Generates], _Generates] = intrinsic

VALUES, FACTORS, NORMS, SPECTRA, TWIDDLES, LENGTH, SIZE, KIND = range(8)
"""Columns of a table of documents, int64: the addresses of the token vectors, the factors of int8 rows, the norms, the
spectra of the kernels and the twiddles of the transform (0 where there is none), then the number of tokens, the size of
the transform, and what the vectors are made of."""
COLUMNS = 8

FLOAT32, FLOAT16, INT8 = range(3)

CELLS = 48 * 2**10
"""Elements of a buffer: four of them stay in a core's cache, and rows are long enough to be worth a loop."""
_TOGETHER = 32
_TILE = 16
"""Elements of a signal that are brought from one order into another at a time, so that their rows stay in the cache."""

_ENOUGH = 4
"""Documents of one length that are multiplied together: of fewer, each alone is quicker."""

_REBIAS = np.float32(2.0**112)  # see es_ttc/vectors/quantise.py


@_intrinsic
def _pointer(_typing: Any, _address: Any) -> Any:
    """Return the pointer to an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@_intrinsic
def _moved(_typing: Any, _half: Any) -> Any:
    """Return 2**-112 of a finite float16, the float32 that its bits are when they are moved to their places there."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.shl(builder.sext(arguments[0], word), word(13))  # the sign stands at the top
        return builder.bitcast(builder.and_(bits, word(-0x70000001)), ir.FloatType())  # sign, exponent, mantissa

    return types.float32(types.int16), generate


@compiled
def greatest_cosines(
    table: Any,
    queries: Any,
    plain: int,
    identity: bool,
    smoothing: int,
    mean: bool,
    floor: Any,
    buffers: Any,
    room: Any,
    out: Any,
) -> None:
    """Write the greatest cosine, over scales and positions, of documents with every query vector.

    Args:
        table: ``(k, COLUMNS)`` int64, documents in the order of their lengths; none is empty.
        queries: ``(r, d)`` float32.
        plain: How many of them, the last ones, are compared with the tokens themselves alone.
        identity: Whether the tokens themselves count for the others.
        smoothing: The number of finite scales above 1; norms begin with theirs, and spectra are theirs.
        mean: Whether the mean of all tokens counts; its norms are the last.
        floor: Least length to divide by.
        buffers: Room: ``(4, c)`` float32 with c no less than ``CELLS``, nor than any size of transform times the number
            of pairs of scales.
        room: Room: float32, r times the length of every document that goes together with one, see :func:`together`.
        out: ``(k, r)`` float32, written.
    """
    roles = len(queries)
    smoothed = roles - plain
    pairs = (smoothing + 1) // 2
    first, last = 0, len(table)
    while first < last:
        size = table[first, SIZE]
        end, most = first + 1, together(size, pairs)
        while end < last and end - first < most and table[end, SIZE] == size:
            end += 1
        longest = table[end - 1, LENGTH]
        found = room[: (end - first) * roles * longest].reshape((end - first, roles, longest))
        for k in range(end - first):
            _similarities(table[first + k], queries, found[k])
        for role in range(smoothed, roles):
            for k in range(end - first):
                out[first + k, role] = _endpoints(table[first + k], found[k, role], True, 0, False, floor)
        for role in range(smoothed):
            for k in range(end - first):
                out[first + k, role] = _endpoints(table[first + k], found[k, role], identity, smoothing, mean, floor)
            if smoothing:
                _smoothed(table[first:end], found[:, role], smoothing, floor, buffers, out[first:end, role])
        first = end


@compiled
def together(size: int, pairs: int) -> int:
    """Return how many documents are transformed side by side."""
    return max(1, min(_TOGETHER, CELLS // (size * pairs))) if pairs else 1


@compiled
def _floats(start: int, size: int) -> Any:
    return numba.carray(_pointer(start), (size,), np.float32)


@compiled
def _similarities(document: Any, queries: Any, signals: Any) -> None:
    """Write the inner products of a document's tokens with every query vector, ``(r, n)``."""
    roles, dims = queries.shape
    fours = roles // 4 * 4  # four query vectors share one read, and one conversion, of a token's
    length, kind, start = document[LENGTH], document[KIND], document[VALUES]
    if kind == FLOAT32:
        floats = numba.carray(_pointer(start), (length, dims), np.float32)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots(floats[i], queries[role : role + 4], np.float32(1), signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = _dot(floats[i], queries[role])
    elif kind == FLOAT16:
        halves = numba.carray(_pointer(start), (length, dims), np.int16)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots_of_halves(halves[i], queries[role : role + 4], signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = _dot_of_halves(halves[i], queries[role])
    else:
        steps = numba.carray(_pointer(start), (length, dims), np.int8)
        factors = _floats(document[FACTORS], length)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots(steps[i], queries[role : role + 4], factors[i], signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = _dot(steps[i], queries[role]) * factors[i]


@_summing
def _dot(row: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += np.float32(row[c]) * query[c]
    return total


@_summing
def _four_dots(row: Any, queries: Any, factor: Any, out: Any) -> None:
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    first, second, third, fourth = queries[0], queries[1], queries[2], queries[3]
    for i in range(len(row)):
        value = np.float32(row[i])
        a += value * first[i]
        b += value * second[i]
        c += value * third[i]
        d += value * fourth[i]
    out[0], out[1], out[2], out[3] = a * factor, b * factor, c * factor, d * factor


@_summing
def _four_dots_of_halves(row: Any, queries: Any, out: Any) -> None:
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    first, second, third, fourth = queries[0], queries[1], queries[2], queries[3]
    for i in range(len(row)):
        value = _moved(row[i]) * _REBIAS  # products of what was moved alone would be denormal, and slow
        a += value * first[i]
        b += value * second[i]
        c += value * third[i]
        d += value * fourth[i]
    out[0], out[1], out[2], out[3] = a, b, c, d


@_summing
def _dot_of_halves(row: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += _moved(row[c]) * _REBIAS * query[c]  # products of what was moved alone would be denormal, and slow
    return total


@_summing
def _endpoints(document: Any, signal: Any, identity: bool, smoothing: int, mean: bool, floor: Any) -> Any:
    """Return the greatest cosine at the two scales that need no convolution; minus infinity where neither counts."""
    length = document[LENGTH]
    best = np.float32(-np.inf)
    if identity:
        for i in range(length):
            best = max(best, signal[i])
    if mean:
        total = np.float32(0)
        for i in range(length):
            total += signal[i]
        norms = _floats(document[NORMS], (smoothing + 1) * length)
        for i in range(smoothing * length, (smoothing + 1) * length):
            best = max(best, total / np.float32(length) / max(norms[i], floor))
    return best


@compiled
def _smoothed(table: Any, signals: Any, smoothing: int, floor: Any, buffers: Any, best: Any) -> None:
    """Raise the greatest cosines of documents of one size of transform by those of their smoothed rows.

    Kernels are real, so two of them make one complex kernel, and the smoothed signals of two scales stand in the real
    and in the imaginary part of one outcome.
    """
    documents, size, pairs = len(table), table[0, SIZE], (smoothing + 1) // 2
    lanes = documents * pairs
    twiddles = numba.carray(_pointer(table[0, TWIDDLES]), (2, size), np.float32)
    buffers[:2, : size * documents] = np.float32(0)
    for tile in range(0, size, _TILE):
        for k in range(documents):
            signal = signals[k]
            for t in range(tile, min(tile + _TILE, table[k, LENGTH])):
                buffers[0, t * documents + k] = signal[t]
    now = transform(buffers, 0, size, documents, twiddles, np.float32(-1))
    _multiply(table, buffers[now], buffers[now + 1], buffers[2 - now], buffers[3 - now], size, pairs)
    now = transform(buffers, 2 - now, size, lanes, twiddles, np.float32(1))
    for tile in range(0, size, _TILE):
        for k in range(documents):
            length = table[k, LENGTH]
            norms = _floats(table[k, NORMS], smoothing * length)
            greatest = best[k]
            for scale in range(smoothing):
                part, lane, start = buffers[now + scale % 2], scale // 2 * documents + k, scale * length
                for t in range(tile, min(tile + _TILE, length)):
                    value, norm = part[t * lanes + lane], max(norms[start + t], floor)
                    if value > greatest * norm:
                        greatest = value / norm
            best[k] = greatest


@compiled
def _multiply(table: Any, real: Any, imag: Any, to_real: Any, to_imag: Any, size: int, pairs: int) -> None:
    """Multiply the documents' transforms by the spectra of their kernels, into ``(size, pairs, documents)``.

    Documents of one length have the same spectra: where there are enough of them side by side, one number of the
    spectra at a time meets them all; others are gone through one by one. Both compute the same.
    """
    documents = len(table)
    lanes = documents * pairs
    for tile in range(0, size, _TILE):
        tile_end = min(tile + _TILE, size)
        first = 0
        while first < documents:
            end = first + 1
            while end < documents and table[end, SPECTRA] == table[first, SPECTRA]:
                end += 1
            spectra = numba.carray(_pointer(table[first, SPECTRA]), (pairs, 2, size), np.float32)
            if end - first >= _ENOUGH:
                for t in range(tile, tile_end):
                    row = t * documents
                    x, y = real[row + first : row + end], imag[row + first : row + end]
                    for pair in range(pairs):
                        a, b, lane = spectra[pair, 0, t], spectra[pair, 1, t], t * lanes + pair * documents
                        _product(x, y, a, -b, to_real[lane + first : lane + end])
                        _product(x, y, b, a, to_imag[lane + first : lane + end])
            else:
                for k in range(first, end):
                    for pair in range(pairs):
                        of_real, of_imag, lane = spectra[pair, 0], spectra[pair, 1], pair * documents + k
                        for t in range(tile, tile_end):
                            u, v = real[t * documents + k], imag[t * documents + k]
                            to_real[t * lanes + lane] = u * of_real[t] - v * of_imag[t]
                            to_imag[t * lanes + lane] = u * of_imag[t] + v * of_real[t]
            first = end


@compiled
def _product(x: Any, y: Any, a: Any, b: Any, out: Any) -> None:
    for k in range(len(out)):
        out[k] = x[k] * a + y[k] * b

"""The loops that numba compiles: from addresses of documents to their greatest cosines in one call.

They run without the interpreter's lock, check nothing and raise nothing. :mod:`es_ttc.rescorers.compiled.window` fills
the table of addresses, holds the arrays, and has checked their shapes.
"""

from typing import Any

import numba
import numpy as np

from es_ttc.rescorers.compiled.documents import (
    LENGTH,
    NORMS,
    SIZE,
    SPECTRA,
    TWIDDLES,
    VALUES,
    floats,
    pointer,
    summing,
)
from es_ttc.rescorers.compiled.fourier import compiled, transform
from es_ttc.rescorers.compiled.late import greatest_products
from es_ttc.rescorers.compiled.products import similarities

CELLS = 48 * 2**10
"""Elements of a buffer: four of them stay in a core's cache, and rows are long enough to be worth a loop."""
_TOGETHER = 32
_TILE = 16
"""Elements of a signal that are brought from one order into another at a time, so that their rows stay in the cache."""

_ENOUGH = 4
"""Documents of one length that are multiplied together: of fewer, each alone is quicker."""


@compiled
def greatest_cosines(
    table: Any,
    queries: Any,
    plain: int,
    identity: bool,
    smoothing: int,
    mean: bool,
    floor: Any,
    asked: Any,
    buffers: Any,
    room: Any,
    tiles: Any,
    out: Any,
) -> None:
    """Write the greatest cosine, over positions, of documents with every query vector: over scales, or for each scale.

    Args:
        table: ``(k, COLUMNS)`` int64, documents in the order of their lengths; none is empty.
        queries: ``(r, d)`` float32.
        plain: How many of them, the last ones, are compared with the tokens themselves alone.
        identity: Whether the tokens themselves count for the others.
        smoothing: The number of finite scales above 1; norms begin with theirs, and spectra are theirs.
        mean: Whether the mean of all tokens counts; its norms are the last.
        floor: Least length to divide by.
        asked: Those last ones as tiles read them, where there are enough of them; else none.
        buffers: Room: ``(4, c)`` float32 with c no less than ``CELLS``, nor than any size of transform times the number
            of pairs of scales.
        room: Room: float32, r times the length of every document that goes together with one, see :func:`together`;
            query vectors that tiles read do not count.
        tiles: Room for the tiles.
        out: ``(k, c, r)`` float32, written: c = 1 for the greatest over all scales, or one row for each scale. Those
            last query vectors have the first row alone.
    """
    tiled = len(asked.vectors)
    roles = len(queries) - tiled
    smoothed = len(queries) - plain
    pairs = (smoothing + 1) // 2
    apart = out.shape[1] > 1
    first, last = 0, len(table)
    while first < last:
        size = table[first, SIZE]
        end, most = first + 1, together(size, pairs)
        while end < last and end - first < most and table[end, SIZE] == size:
            end += 1
        longest = table[end - 1, LENGTH]
        found = room[: (end - first) * roles * longest].reshape((end - first, roles, longest))
        for k in range(first, end):  # one read of a document's vectors from memory, for whatever is compared with them
            similarities(table[k], queries[:roles], found[k - first])
            if tiled:
                greatest_products(table[k], table[min(k + 1, last - 1), VALUES], asked, tiles, out[k, 0, roles:])
        for role in range(smoothed, roles):
            for k in range(end - first):
                out[first + k, 0, role] = _endpoints(table[first + k], found[k, role], True, 0, False, floor)
        for role in range(smoothed):
            for k in range(end - first):
                best = out[first + k, :, role]
                if apart:
                    best[:] = np.float32(-np.inf)
                    if mean:
                        best[-1] = _endpoints(table[first + k], found[k, role], False, smoothing, True, floor)
                    if identity:
                        best[0] = _endpoints(table[first + k], found[k, role], True, smoothing, False, floor)
                else:
                    best[0] = _endpoints(table[first + k], found[k, role], identity, smoothing, mean, floor)
            if smoothing:
                row = int(identity) if apart else 0
                _smoothed(table[first:end], found[:, role], smoothing, floor, buffers, out[first:end, row:, role])
        first = end


@compiled
def together(size: int, pairs: int) -> int:
    """Return how many documents are transformed side by side."""
    return max(1, min(_TOGETHER, CELLS // (size * pairs))) if pairs else 1


@summing
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
        norms = floats(document[NORMS], (smoothing + 1) * length)
        for i in range(smoothing * length, (smoothing + 1) * length):
            best = max(best, total / np.float32(length) / max(norms[i], floor))
    return best


@compiled
def _smoothed(table: Any, signals: Any, smoothing: int, floor: Any, buffers: Any, best: Any) -> None:
    """Raise the greatest cosines of documents of one size of transform by those of their smoothed rows.

    ``best`` is ``(k, c)``: with c = 1 all scales raise the same number, otherwise the i-th scale raises the i-th one.
    Kernels are real, so two of them make one complex kernel, and the smoothed signals of two scales stand in the real
    and in the imaginary part of one outcome.
    """
    documents, size, pairs = len(table), table[0, SIZE], (smoothing + 1) // 2
    lanes = documents * pairs
    apart = best.shape[1] > 1
    twiddles = numba.carray(pointer(table[0, TWIDDLES]), (2, size), np.float32)
    buffers[:2, : size * documents] = np.float32(0)
    for tile in range(0, size, _TILE):
        for k in range(documents):
            signal = signals[k]
            for t in range(tile, min(tile + _TILE, table[k, LENGTH])):
                buffers[0, t * documents + k] = signal[t]
    now = transform(buffers, 0, size, documents, twiddles, np.float32(-1))
    _multiply(table, buffers[now], buffers[now + 1], buffers[2 - now], buffers[3 - now], size, pairs)
    now = transform(buffers, 2 - now, size, lanes, twiddles, np.float32(1))
    rows = best.shape[1]
    # A row a tile wide for each number that is raised: sixteen scales of 32 documents take a sixth of the free buffer.
    greatest = buffers[2 - now, : documents * rows * _TILE].reshape((documents, rows, _TILE))
    greatest[:] = np.float32(-np.inf)
    for tile in range(0, size, _TILE):
        for k in range(documents):
            length = table[k, LENGTH]
            norms = floats(table[k, NORMS], smoothing * length)
            end = min(tile + _TILE, length)
            if tile >= end:
                continue
            for scale in range(smoothing):
                part, lane = buffers[now + scale % 2], scale // 2 * documents + k
                of_tile = norms[scale * length + tile : scale * length + end]
                _raise_ratios(part[tile * lanes + lane :], lanes, of_tile, floor, greatest[k, scale if apart else 0])
    for k in range(documents):
        for row in range(rows):
            for t in range(_TILE):
                best[k, row] = max(best[k, row], greatest[k, row, t])


@compiled
def _raise_ratios(values: Any, stride: int, norms: Any, floor: Any, greatest: Any) -> None:
    """Raise each of some numbers by a value, ``stride`` elements after the one before it, divided by its norm."""
    for t in range(len(norms)):
        ratio = values[t * stride] / max(norms[t], floor)
        greatest[t] = max(greatest[t], ratio)


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
            spectra = numba.carray(pointer(table[first, SPECTRA]), (pairs, 2, size), np.float32)
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
                    _multiply_alone(real, imag, spectra, tile, tile_end, documents, k, to_real, to_imag)
            first = end


@compiled
def _multiply_alone(
    real: Any, imag: Any, spectra: Any, first: int, end: int, documents: int, k: int, to_real: Any, to_imag: Any
) -> None:
    """Multiply a tile of one document's transform, whose elements stand apart, by its spectra."""
    pairs, lanes = len(spectra), documents * len(spectra)
    for t in range(first, end):
        u, v = real[t * documents + k], imag[t * documents + k]
        for pair in range(pairs):
            a, b, at = spectra[pair, 0, t], spectra[pair, 1, t], t * lanes + pair * documents + k
            to_real[at] = u * a - v * b
            to_imag[at] = u * b + v * a


@compiled
def _product(x: Any, y: Any, a: Any, b: Any, out: Any) -> None:
    for k in range(len(out)):
        out[k] = x[k] * a + y[k] * b

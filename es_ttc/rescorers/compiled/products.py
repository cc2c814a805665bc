"""Inner products of a document's tokens with a few query vectors, token by token."""

from typing import Any

import numba
import numpy as np

from es_ttc.rescorers.compiled.documents import (
    FACTORS,
    FLOAT16,
    FLOAT32,
    KIND,
    LENGTH,
    REBIAS,
    VALUES,
    floats,
    moved,
    pointer,
    summing,
)
from es_ttc.rescorers.compiled.fourier import compiled


@compiled
def similarities(document: Any, queries: Any, signals: Any) -> None:
    """Write the inner products of a document's tokens with every query vector, ``(r, n)``."""
    roles, dims = queries.shape
    fours = roles // 4 * 4  # four query vectors share one read, and one conversion, of a token's
    length, kind, start = document[LENGTH], document[KIND], document[VALUES]
    if kind == FLOAT32:
        singles = numba.carray(pointer(start), (length, dims), np.float32)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots(singles[i], queries[role : role + 4], np.float32(1), signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = dot(singles[i], queries[role])
    elif kind == FLOAT16:
        halves = numba.carray(pointer(start), (length, dims), np.int16)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots_of_halves(halves[i], queries[role : role + 4], signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = _dot_of_halves(halves[i], queries[role])
    else:
        steps = numba.carray(pointer(start), (length, dims), np.int8)
        factors = floats(document[FACTORS], length)
        for i in range(length):
            for role in range(0, fours, 4):
                _four_dots(steps[i], queries[role : role + 4], factors[i], signals[role : role + 4, i])
            for role in range(fours, roles):
                signals[role, i] = dot(steps[i], queries[role]) * factors[i]


@summing
def dot(row: Any, query: Any) -> Any:
    """Return the inner product of a row of float32 or int8 with a query vector."""
    total = np.float32(0)
    for c in range(len(query)):
        total += np.float32(row[c]) * query[c]
    return total


@summing
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


@summing
def _four_dots_of_halves(row: Any, queries: Any, out: Any) -> None:
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    first, second, third, fourth = queries[0], queries[1], queries[2], queries[3]
    for i in range(len(row)):
        value = moved(row[i]) * REBIAS  # products of what was moved alone would be denormal, and slow
        a += value * first[i]
        b += value * second[i]
        c += value * third[i]
        d += value * fourth[i]
    out[0], out[1], out[2], out[3] = a, b, c, d


@summing
def _dot_of_halves(row: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += moved(row[c]) * REBIAS * query[c]  # products of what was moved alone would be denormal, and slow
    return total

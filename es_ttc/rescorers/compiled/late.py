"""Late interaction: every query vector's greatest product with a document's tokens, tile by tile.

float32 and float16 tokens are multiplied as float32. int8 tokens are multiplied as integers, two products in one
instruction, by query vectors that are rounded to int16: this finds the tokens that may be the best, and their products
are then computed from the query vectors as they are. So no score depends on the rounding.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.compiled.documents import (
    FACTORS,
    FLOAT16,
    INT8,
    KIND,
    LENGTH,
    REBIAS,
    VALUES,
    address,
    floats,
    moved,
    pointer,
)
from es_ttc.rescorers.compiled.fourier import compiled
from es_ttc.rescorers.compiled.products import dot
from es_ttc.rescorers.compiled.tiles import (
    BEFORE_ALL,
    LANES,
    SUMS,
    TOKENS_WITH_8,
    TOKENS_WITH_16,
    floats_with_8,
    floats_with_16,
    reaching_8,
    reaching_16,
    steps_with_8,
    steps_with_16,
)

Float32 = NDArray[np.float32]

FEW = 4
"""Query vectors for which tiles are not worth it."""

_PANEL = 2 * LANES
_BLOCK_CELLS = 2**14
_MOST_ROWS = 8 * SUMS
"""Components, and rows, of a block: tokens that meet all query vectors, from the nearest caches, before the next."""
_GREATEST_STEP = 2.0**15 - 1
_GREATEST_SUM = 2.0**31 - 2.0**20  # of products in steps, with room for the rounding of every step
_ROUNDING = 4e-6
"""More than the rounding of float32 changes a cosine."""


class Asked(NamedTuple):
    """Query vectors as tiles read them: in panels of 16 and, at the end, 8.

    Attributes:
        vectors: ``(r, d)`` float32, as they are.
        panels: float32, the vectors of each panel component by component; 0 where there is no vector.
        steps: int16, the same rounded to steps, by pairs of components.
        units: The length of each vector's step.
        errors: More than the rounding to steps changes each vector's cosines.
    """

    vectors: Float32
    panels: Float32
    steps: NDArray[np.int16]
    units: Float32
    errors: Float32


class Room(NamedTuple):
    """What a thread computes in: arrays of float32.

    Attributes:
        block: Tokens as they are multiplied, float32 or int16.
        found: The cosines of a block with a panel.
        best: The greatest cosine with each vector.
        limits: What a cosine with each vector of a panel has to reach.
    """

    block: Float32
    found: Float32
    best: Float32
    limits: Float32


def asked(vectors: Float32) -> Asked:
    """Return query vectors as tiles read them.

    Args:
        vectors: ``(r, d)`` float32, C-contiguous.
    """
    count, dims = vectors.shape
    lanes = _lanes(count)
    made = Asked(
        vectors,
        np.zeros(lanes * dims, np.float32),
        np.zeros(lanes * _even(dims), np.int16),
        np.zeros(lanes, np.float32),
        np.zeros(lanes, np.float32),
    )
    _fill(made)
    return made


def room_sizes(vectors: Float32) -> dict[str, int]:
    """Return how long the arrays of :class:`Room` are for some query vectors, by name."""
    count, dims = vectors.shape
    rows = _rows(dims)
    return {"block": rows * _even(dims), "found": rows * _PANEL, "best": _lanes(count), "limits": _PANEL}


@compiled
def greatest_products(document: Any, following: int, asked: Any, room: Any, out: Any) -> None:
    """Write the greatest product of every query vector with a document's tokens.

    Args:
        document: The document's row of a table; it has a token or more.
        following: The address of the vectors that are read next: they are asked for on the way.
        asked: The query vectors.
        room: Arrays to compute in.
        out: ``(r,)`` float32, written.
    """
    room.best[:] = np.float32(BEFORE_ALL)
    dims, length, kind = asked.vectors.shape[1], document[LENGTH], document[KIND]
    width = dims * (1 if kind == INT8 else 2 if kind == FLOAT16 else 4)
    rows = _rows(dims)
    for first in range(0, length, rows):
        last = min(first + rows, length)
        start = document[VALUES] + first * width
        ahead = start + rows * width if last < length else following
        if kind == INT8:
            _compare_steps(start, floats(document[FACTORS] + 4 * first, last - first), asked, ahead, room)
        else:
            _compare_floats(start, last - first, kind == FLOAT16, asked, ahead, room)
    out[:] = room.best[: len(out)]


@compiled
def _compare_floats(start: int, rows: int, halves: bool, asked: Any, ahead: int, room: Any) -> None:
    """Raise the greatest products by those of a block of float32 or float16."""
    dims, lanes = asked.vectors.shape[1], len(room.best)
    size = rows * dims * (2 if halves else 4) // _tiles(rows, lanes)
    step = -(-size // dims)
    if halves:
        _widen(numba.carray(pointer(start), (rows * dims,), np.int16), room.block)
        start = address(room.block)
    for lane in range(0, lanes, _PANEL):
        panel, best = address(asked.panels[lane * dims :]), address(room.best[lane:])
        both = lanes - lane > LANES
        for token in range(0, rows, TOKENS_WITH_16 if both else TOKENS_WITH_8):
            if both:
                floats_with_16(start, 4 * dims, token, rows - 1, panel, dims, best, ahead, step)
            else:
                floats_with_8(start, 4 * dims, token, rows - 1, panel, dims, best, ahead, step)
            ahead += step * dims


@compiled
def _compare_steps(start: int, factors: Any, asked: Any, ahead: int, room: Any) -> None:
    """Raise the greatest products by those of a block of int8 with a factor for each row."""
    count, dims = asked.vectors.shape
    rows, lanes, even = len(factors), len(room.best), _even(dims)
    size = rows * dims // _tiles(rows, lanes)
    step = -(-size // (even // 2))
    tokens = numba.carray(pointer(start), (rows, dims), np.int8)
    wide, own = address(room.block), address(factors)
    _widen_steps(tokens, numba.carray(pointer(wide), (rows, even), np.int16))
    for lane in range(0, lanes, _PANEL):
        panel, units = address(asked.steps[lane * even :]), address(asked.units[lane:])
        found, best = address(room.found), address(room.limits)
        room.limits[:] = np.float32(BEFORE_ALL)
        both = lanes - lane > LANES
        for token in range(0, rows, TOKENS_WITH_16 if both else TOKENS_WITH_8):
            if both:
                steps_with_16(wide, 2 * even, token, rows - 1, panel, even // 2, own, units, found, best, ahead, step)
            else:
                steps_with_8(wide, 2 * even, token, rows - 1, panel, even // 2, own, units, found, best, ahead, step)
            ahead += step * even // 2
        last = min(lane + _PANEL, count)
        _decide(tokens, factors, asked.vectors[lane:last], asked.errors[lane:last], both, room.best[lane:last], room)


@compiled
def _decide(tokens: Any, factors: Any, vectors: Any, errors: Any, both: bool, best: Any, room: Any) -> None:
    """Raise the greatest products of a panel by those of the tokens whose rounded ones come near the greatest.

    ``room.limits`` holds the greatest of the rounded products, ``room.found`` all of them.
    """
    limits, width = room.limits, _PANEL if both else LANES
    for lane in range(len(vectors)):
        limits[lane] = max(limits[lane] - 2 * errors[lane], best[lane] - errors[lane])
    of_vectors = (1 << len(vectors)) - 1
    at, limit = address(room.found), address(limits)
    for token in range(len(tokens)):
        reached = (reaching_16(at, limit) if both else reaching_8(at, limit)) & of_vectors
        at += 4 * width
        lane = 0
        while reached:
            if reached & 1:
                best[lane] = max(best[lane], dot(tokens[token], vectors[lane]) * factors[token])
                limits[lane] = max(limits[lane], best[lane] - errors[lane])
            reached >>= 1
            lane += 1


@compiled
def _widen(halves: Any, out: Any) -> None:
    for i in range(len(halves)):
        out[i] = moved(halves[i]) * REBIAS


@compiled
def _widen_steps(steps: Any, out: Any) -> None:
    """Write int8 as int16, and a 0 after each row of an odd number of them."""
    rows, dims = steps.shape
    if dims == out.shape[1]:
        source, target = steps.reshape(rows * dims), out.reshape(rows * dims)
        for i in range(rows * dims):
            target[i] = source[i]
        return
    for row in range(rows):
        for i in range(dims):
            out[row, i] = steps[row, i]
        out[row, dims] = 0


@compiled
def _fill(asked: Any) -> None:
    """Bring the vectors into panels, as they are and in steps, and say how much the rounding to steps may change."""
    count, dims = asked.vectors.shape
    lanes, even = len(asked.units), _even(dims)
    for query in range(count):
        greatest, total = 0.0, 0.0
        for i in range(dims):
            size = float(abs(asked.vectors[query, i]))
            greatest = max(greatest, size)
            total += size
        per_unit = min(_GREATEST_STEP / greatest, _GREATEST_SUM / (128 * total)) if greatest > 0 else 1.0
        panel = query // _PANEL * _PANEL
        width, lane, squares = min(_PANEL, lanes - panel), query - panel, 0.0
        for i in range(dims):
            value = asked.vectors[query, i]
            step = np.rint(value * per_unit)
            squares += (step / per_unit - value) ** 2
            asked.panels[panel * dims + i * width + lane] = value
            asked.steps[panel * even + (i // 2 * width + lane) * 2 + i % 2] = np.int16(step)
        asked.units[query] = 1 / per_unit
        asked.errors[query] = 1.01 * np.sqrt(squares) + _ROUNDING


@compiled
def _lanes(vectors: int) -> int:
    """Return the query vectors of all panels."""
    return -(-vectors // LANES) * LANES


@compiled
def _even(dims: int) -> int:
    return dims + dims % 2


@compiled
def _rows(dims: int) -> int:
    """Return the tokens of a block: whole tiles."""
    return max(1, min(_MOST_ROWS, _BLOCK_CELLS // dims) // SUMS) * SUMS


@compiled
def _tiles(rows: int, lanes: int) -> int:
    """Return how many tiles of tokens and query vectors a block has."""
    tiles = lanes // _PANEL * -(-rows // TOKENS_WITH_16)
    return tiles + (-(-rows // TOKENS_WITH_8) if lanes % _PANEL else 0)

"""What a core can do at most: multiply-adds in its registers, and bytes from its memory."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from es_ttc.rescorers.compiled.documents import generated, summing
from es_ttc.rescorers.compiled.fourier import compiled
from es_ttc.rescorers.compiled.tiles import LANES, carried_loop, sums_of_pairs

CHAINS = 12  # as many sums as a tile has
_TURNS = 100_000
_FLOATS, _WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)
_PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)


def multiply_adds(*, integers: bool) -> float:
    """Return a core's most multiply-adds a second: float32, or int16 that are added up as int32."""
    turn, at_once = (_integers, 2 * LANES) if integers else (_singles, LANES)
    return CHAINS * at_once * _TURNS / _best(lambda: turn(_TURNS, 3), 60)


def bytes_read(size: int = 80 * 10**6) -> float:
    """Return the most bytes a second that a core reads from memory, in order."""
    values = np.ones(size // 4, np.float32)
    return values.nbytes / _best(lambda: _sum(values), 15)


@summing
def _sum(values: Any) -> Any:
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


@generated
def _chains_of_floats(_typing: Any, turns: Any, seed: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        turns, seed = arguments
        factor = _everywhere(builder, builder.sitofp(seed, ir.FloatType()), _FLOATS)

        def body(_place: Any, sums: list[Any]) -> list[Any]:
            flags = ("contract",)
            return [builder.fadd(builder.fmul(total, factor, flags=flags), factor, flags=flags) for total in sums]

        starts = [ir.Constant(_FLOATS, [float(chain)] * LANES) for chain in range(CHAINS)]
        sums = carried_loop(builder, turns, starts, body)
        total = sums[0]
        for other in sums[1:]:
            total = builder.fadd(total, other)
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.float32(turns, seed), generate


@generated
def _chains_of_integers(_typing: Any, turns: Any, seed: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        turns, seed = arguments
        factor = builder.bitcast(_everywhere(builder, builder.trunc(seed, ir.IntType(32)), _WORDS), _PAIRS)

        def body(_place: Any, sums: list[Any]) -> list[Any]:
            return [
                builder.add(total, sums_of_pairs(builder, builder.bitcast(total, _PAIRS), factor)) for total in sums
            ]

        starts = [ir.Constant(_WORDS, [chain] * LANES) for chain in range(CHAINS)]
        sums = carried_loop(builder, turns, starts, body)
        total = sums[0]
        for other in sums[1:]:
            total = builder.xor(total, other)
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.int32(turns, seed), generate


def _everywhere(builder: Any, value: Any, kind: Any) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_WORDS, [0] * LANES))


@compiled
def _singles(turns: int, seed: int) -> Any:
    return _chains_of_floats(turns, seed)


@compiled
def _integers(turns: int, seed: int) -> Any:
    return _chains_of_integers(turns, seed)


def _best(call: Callable[[], object], repeat: int) -> float:
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)

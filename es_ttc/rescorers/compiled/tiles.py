"""Inner products of twelve tokens with eight query vectors, or of six with sixteen, kept in a core's registers.

A register holds the same component of eight query vectors, and meets that component of one token after the other: what
is read once serves all of them, and the sums need no adding up across a register. There are twelve sums in either case:
an addition takes some four cycles, and with fewer sums a core would wait for the one before. The loops are given to the
compiler as instructions on whole registers, because it does not find this form by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from es_ttc.rescorers.compiled.documents import generated

SUMS = 12
"""Registers of sums in a tile, of a core's sixteen."""
TOKENS_WITH_16, TOKENS_WITH_8 = SUMS // 2, SUMS
"""Tokens of a tile."""
LANES = 8
"""Query vectors of a register."""
BEFORE_ALL = -3.0e38
"""Less than every product: what the greatest one is compared with first."""

_WORD, _LONG, _HALF_WORD = ir.IntType(32), ir.IntType(64), ir.IntType(16)
_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)
_WORDS = ir.VectorType(_WORD, LANES)
_PAIRS = ir.VectorType(_HALF_WORD, 2 * LANES)
_WIDE = ir.VectorType(_WORD, 2 * LANES)
_ONE_ROUNDING = ("contract",)  # a product and its addition may be one instruction

Values = list[Any]


def _tile_of_floats(registers: int) -> Any:
    """Return the function that compares tokens of float32 with this many registers of query vectors."""

    def tile(
        _typing: Any,
        start: Any,
        stride: Any,
        first: Any,
        last: Any,
        panel: Any,
        dims: Any,
        best: Any,
        ahead: Any,
        step: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            start, stride, first, last, panel, dims, best, ahead, step = arguments
            tokens = SUMS // registers
            rows = [_pointer(builder, row, _FLOAT) for row in _rows(builder, tokens, start, stride, first, last)]
            queries = _pointer(builder, panel, _FLOAT)

            def component(place: Any, sums: Values) -> Values:
                _ask_for(builder, builder.add(ahead, builder.mul(place, step)))
                of_queries = [
                    _register(builder, queries, builder.add(builder.mul(place, _LONG(registers * LANES)), _LONG(lane)))
                    for lane in range(0, registers * LANES, LANES)
                ]
                of_tokens = (
                    _repeated(builder, builder.load(builder.gep(row, [place]), align=1), _FLOATS) for row in rows
                )
                products = (
                    builder.fmul(token, query, flags=_ONE_ROUNDING) for token in of_tokens for query in of_queries
                )
                return [
                    builder.fadd(total, product, flags=_ONE_ROUNDING)
                    for total, product in zip(sums, products, strict=True)
                ]

            sums = carried_loop(builder, dims, [ir.Constant(_FLOATS, [0.0] * LANES)] * SUMS, component)
            for register in range(registers):
                _raise(builder, _pointer(builder, best, _FLOAT), register, sums[register::registers])
            return context.get_dummy_value()

        return types.none(start, stride, first, last, panel, dims, best, ahead, step), generate

    return generated(tile)


def _tile_of_steps(registers: int) -> Any:
    """Return the function that compares tokens of int16 with this many registers of query vectors."""

    def tile(
        _typing: Any,
        start: Any,
        stride: Any,
        first: Any,
        last: Any,
        panel: Any,
        pairs: Any,
        factors: Any,
        units: Any,
        found: Any,
        best: Any,
        ahead: Any,
        step: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            start, stride, first, last, panel, pairs, factors, units, found, best, ahead, step = arguments
            tokens = SUMS // registers
            rows = [_pointer(builder, row, _WORD) for row in _rows(builder, tokens, start, stride, first, last)]
            queries = _pointer(builder, panel, _WORD)

            def pair(place: Any, sums: Values) -> Values:
                _ask_for(builder, builder.add(ahead, builder.mul(place, step)))
                of_queries = [
                    _register(
                        builder, queries, builder.add(builder.mul(place, _LONG(registers * LANES)), _LONG(lane)), _PAIRS
                    )
                    for lane in range(0, registers * LANES, LANES)
                ]
                of_tokens = (
                    builder.bitcast(_repeated(builder, builder.load(builder.gep(row, [place])), _WORDS), _PAIRS)
                    for row in rows
                )
                products = (sums_of_pairs(builder, token, query) for token in of_tokens for query in of_queries)
                return [builder.add(total, product) for total, product in zip(sums, products, strict=True)]

            sums = carried_loop(builder, pairs, [ir.Constant(_WORDS, [0] * LANES)] * SUMS, pair)
            own = _rows(builder, tokens, factors, _LONG(4), first, last)
            lengths = [
                _repeated(builder, builder.load(_pointer(builder, one, _FLOAT), align=1), _FLOATS) for one in own
            ]
            room, at = _pointer(builder, found, _FLOAT), builder.mul(first, _LONG(registers * LANES))
            for register in range(registers):
                unit = _register(builder, _pointer(builder, units, _FLOAT), _LONG(register * LANES))
                cosines = [
                    builder.fmul(builder.fmul(builder.sitofp(total, _FLOATS), unit), length)
                    for total, length in zip(sums[register::registers], lengths, strict=True)
                ]
                for token, cosine in enumerate(cosines):
                    place = builder.add(at, _LONG((token * registers + register) * LANES))
                    _store(builder, cosine, room, place)
                _raise(builder, _pointer(builder, best, _FLOAT), register, cosines)
            return context.get_dummy_value()

        return types.none(start, stride, first, last, panel, pairs, factors, units, found, best, ahead, step), generate

    return generated(tile)


def _reaching(registers: int) -> Any:
    """Return the function that says which lanes of some registers reach a limit."""

    def reaching(_typing: Any, found: Any, limits: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            lanes, floats = registers * LANES, ir.VectorType(_FLOAT, registers * LANES)
            values, bounds = (
                _register(builder, _pointer(builder, address, _FLOAT), _LONG(0), floats) for address in arguments
            )
            mask = builder.bitcast(builder.fcmp_ordered(">=", values, bounds), ir.IntType(lanes))
            return builder.zext(mask, _LONG)

        return types.int64(found, limits), generate

    return generated(reaching)


floats_with_16, floats_with_8 = _tile_of_floats(2), _tile_of_floats(1)
"""``(start, stride, first, last, panel, dims, best, ahead, step)``: raise 16 or 8 float32 by the greatest product of
a tile's tokens from ``first`` on, but none after ``last``. The rows of float32 begin at ``start``, ``stride`` bytes
apart; the panel holds the query vectors component by component. With each component the memory ``step`` bytes further
on from ``ahead``, which need not be readable, is asked for, and not waited for."""

steps_with_16, steps_with_8 = _tile_of_steps(2), _tile_of_steps(1)
"""``(start, stride, first, last, panel, pairs, factors, units, found, best, ahead, step)``: the same for rows of int16,
with a panel of pairs of components, in integers. Each sum is multiplied by the token's factor and by the query vector's
unit, and all of them are written to ``found``, token by token."""

reaching_16, reaching_8 = _reaching(2), _reaching(1)
"""``(found, limits)``: return which of 16 or 8 float32 are at least as great as their limits, a bit each."""


def _rows(builder: Any, tokens: int, start: Any, stride: Any, first: Any, last: Any) -> Values:
    """Return the addresses of a tile's rows; the last row stands for those after it."""
    rows = []
    for token in range(tokens):
        row = builder.add(first, _LONG(token))
        row = builder.select(builder.icmp_signed("<", row, last), row, last)
        rows.append(builder.add(start, builder.mul(row, stride)))
    return rows


def carried_loop(builder: Any, times: Any, sums: Sequence[Any], body: Callable[[Any, Values], Values]) -> Values:
    """Carry sums, in registers, through a loop that runs once or more; return what they are after it."""
    before, inside, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(inside)
    builder.position_at_end(inside)
    place = builder.phi(_LONG)
    carried = [builder.phi(value.type) for value in sums]
    found = body(place, carried)
    following = builder.add(place, _LONG(1))
    for phi, first, later in zip([place, *carried], [_LONG(0), *sums], [following, *found], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, inside)
    builder.cbranch(builder.icmp_signed("<", following, times), inside, after)
    builder.position_at_end(after)
    return found


def _ask_for(builder: Any, address: Any) -> None:
    """Have the memory around an address brought into the core's second cache."""
    place = _pointer(builder, address, ir.IntType(8))
    function = builder.module.declare_intrinsic(
        "llvm.prefetch", [place.type], ir.FunctionType(ir.VoidType(), [place.type, _WORD, _WORD, _WORD])
    )
    to_be_read, near, of_data = _WORD(0), _WORD(2), _WORD(1)
    builder.call(function, [place, to_be_read, near, of_data])


def sums_of_pairs(builder: Any, left: Any, right: Any) -> Any:
    """Return the sums of two neighbouring products of int16 each: one instruction (``pmaddwd``) where there is one."""
    products = builder.mul(builder.sext(left, _WIDE), builder.sext(right, _WIDE))
    nothing = ir.Constant(_WIDE, ir.Undefined)
    even, odd = (ir.Constant(_WORDS, list(range(side, 2 * LANES, 2))) for side in (0, 1))
    return builder.add(builder.shuffle_vector(products, nothing, even), builder.shuffle_vector(products, nothing, odd))


def _raise(builder: Any, best: Any, register: int, values: Values) -> None:
    """Raise a register's worth of float32 in memory to the greatest of some registers."""
    place = _LONG(register * LANES)
    greatest = _register(builder, best, place)
    for value in values:
        greatest = builder.select(builder.fcmp_ordered(">", value, greatest), value, greatest)
    _store(builder, greatest, best, place)


def _repeated(builder: Any, value: Any, kind: Any) -> Any:
    """Return a register that holds one value in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, _WORD(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_WORDS, [0] * LANES))


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(kind))


def _register(builder: Any, start: Any, place: Any, kind: Any = _FLOATS) -> Any:
    """Return the values from an element on, wherever they stand."""
    return builder.load(builder.bitcast(builder.gep(start, [place]), ir.PointerType(kind)), align=4)


def _store(builder: Any, value: Any, start: Any, place: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(start, [place]), ir.PointerType(value.type)), align=4)

"""Token vectors in 4 or 2 bits a component, without training: rotate, round to a Gaussian's levels, restore the length.

After a fixed random rotation (:mod:`es_ttc.vectors.rotation`) the components of any unit vector are distributed about
as a Gaussian's, so one list of levels serves every encoder: those with the least squared error for a Gaussian (Lloyd
1957, Max 1960). One factor a row restores the length. This is the family of RaBitQ (Gao and Long, arXiv 2405.12497)
and TurboQuant (Zandieh et al., arXiv 2504.19874). Queries are rotated when documents are scored; documents never are.

Levels are whole numbers of int8, so products with them are those of int8 vectors. A row is a number of blocks of 64
components, the last one filled with code 0. Byte i of a block has, from its lowest bits up, the codes of its
components i and i + 32 (4 bits), or i, i + 16, i + 32 and i + 48 (2 bits): one shuffle of a register decodes it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.rotation import rotated_columns
from es_ttc.vectors.tokens import BLOCK, CODE_BITS, Bits, Float32, TokenVectors, code_bytes

Int8 = NDArray[np.int8]
UInt8 = NDArray[np.uint8]

LEVELS: Mapping[Bits, Int8] = {
    4: np.array([-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127], np.int8),
    2: np.array([-127, -38, 38, 127], np.int8),
}
"""``(2**bits,)`` by bits, ascending: Max, "Quantizing for Minimum Distortion", 1960, table I, in whole steps."""
_UNIT: Mapping[Bits, float] = {4: 2.7326 / 127, 2: 1.5104 / 127}  # standard deviations of a component that one step is


def encode(rows: Float32, bits: Bits) -> TokenVectors:
    """Return finite float32 rows ``(n, d)`` in codes, the same on every machine to the last bit."""
    dims, levels = rows.shape[1], LEVELS[bits]
    values = np.zeros((len(rows), code_bytes(dims, bits)), np.uint8)
    factors = np.zeros(len(rows), np.float32)
    borders = (levels[1:].astype(np.float32) + levels[:-1]) / 2 * np.float32(_UNIT[bits] / np.sqrt(dims))
    for part, columns in rotated_columns(rows):
        lengths = np.sqrt(np.add.reduce(columns * columns, axis=0))  # row by row, so in the same order everywhere
        codes = np.zeros((-(-dims // BLOCK) * BLOCK, columns.shape[1]), np.uint8)
        for border in borders:
            codes[:dims] += columns > border * lengths
        steps = levels[codes[:dims]].astype(np.int64)
        factors[part] = lengths / np.sqrt(np.einsum("dn,dn->n", steps, steps))
        values[part] = _packed(codes, bits).T
    return TokenVectors(values, factors, coded=dims)


def steps_of(tokens: TokenVectors) -> Int8:
    """Return the levels of vectors in codes, ``(n, d)`` int8."""
    bits = CODE_BITS[tokens.codec]
    count, width = tokens.values.shape
    across = BLOCK * bits // 8
    blocks = tokens.values.view(np.uint8).reshape(count, width // across, 1, across)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = (blocks >> shifts & np.uint8(2**bits - 1)).reshape(count, width * 8 // bits)
    steps: Int8 = LEVELS[bits][codes[:, : tokens.dims]]
    return steps


def _packed(codes: UInt8, bits: Bits) -> UInt8:
    """Return the bytes ``(b, m)`` of codes ``(components, m)``."""
    parts = codes.reshape(-1, 8 // bits, BLOCK * bits // 8, codes.shape[1])
    packed: UInt8 = parts[:, 0].copy()
    for place in range(1, parts.shape[1]):
        packed |= parts[:, place] << np.uint8(bits * place)
    return packed.reshape(-1, codes.shape[1])

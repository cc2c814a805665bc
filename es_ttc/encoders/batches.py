"""Batches of fixed shape, so that a text's vectors do not depend on the other texts of its batch.

Matrix libraries choose their kernels, and with them the order of additions, by the shape of the whole batch. In float32
this changes a unit row's component by up to 5e-7, in bfloat16 by up to 5e-3 (all-MiniLM-L6-v2). So the shape depends
only on the text's own length: the text is padded to the next step, the number of rows follows from the padded length,
and an incomplete batch is filled with rows of padding. Vectors are then equal bit for bit.

Kernels of attention also differ without a mask; where this changes the result, a batch has one spare row of padding.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Windows that run together."""

    members: list[int]
    rows: int
    length: int


def padded_length(length: int, max_length: int) -> int:
    """Return the length that a window of ``length`` tokens is padded to: steps of 16 up to 64, of 32 beyond."""
    step = 16 if length <= 64 else 32
    return min(-(-length // step) * step, max_length)


def fixed_batches(lengths: Sequence[int], *, max_length: int, tokens: int, spare: int = 0) -> Iterator[TokenBatch]:
    """Group windows into batches of fixed shapes, the longest first (so that the memory peak comes first)."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, length in enumerate(lengths):
        by_length[padded_length(length, max_length)].append(position)
    for length in sorted(by_length, reverse=True):
        rows = max(1, tokens // length)
        members = by_length[length]
        for start in range(0, len(members), rows):
            yield TokenBatch(members[start : start + rows], rows + spare, length)

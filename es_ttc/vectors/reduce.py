"""Fewer token vectors for a document: neighbours that resemble each other become one, and some are left out.

Token pooling is hierarchical clustering by Ward's criterion (Clavie et al., "Reducing the Footprint of Multi-Vector
Retrieval with Minimal Performance Impact via Token Pooling", 2024). Here only tokens that follow each other are
joined, so a pooled vector stands for a stretch of text, and the vectors keep the order of the text.
"""

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

Starts = NDArray[np.int64]


def group_starts(rows: Float32, groups: int) -> Starts:
    """Return the first row of each group of consecutive rows that resemble each other, ``(groups,)``, ascending.

    Each step joins the two neighbouring groups whose union adds least to the sum of squared distances of rows to their
    group's mean (Ward's criterion); of equal ones the first.

    Args:
        rows: ``(n, d)`` vectors.
        groups: Number of groups, from 1 to n.
    """
    count = len(rows)
    sums = rows.astype(np.float64)
    lengths = np.einsum("ij,ij->i", sums, sums)
    costs = np.full(count, np.inf)  # of joining the group that begins here with the next one
    costs[:-1] = (lengths[:-1] + lengths[1:]) / 2 - np.einsum("ij,ij->i", sums[:-1], sums[1:])
    squares = lengths.tolist()  # of each group's sum
    sizes = [1] * count
    after = list(range(1, count + 1))  # the next group's first row; n behind the last group
    before = list(range(-1, count - 1))

    def cost(first: int, second: int) -> float:
        """Return the squared distance of two groups' means, times the harmonic part of their sizes."""
        one, other, product = sizes[first], sizes[second], float(sums[first] @ sums[second])
        apart: float = squares[first] * other / one + squares[second] * one / other - 2 * product
        return apart / (one + other)

    for _ in range(count - groups):
        first = int(costs.argmin())
        second = after[first]
        sums[first] += sums[second]
        squares[first] = float(sums[first] @ sums[first])
        sizes[first] += sizes[second]
        sizes[second] = 0
        costs[second] = np.inf
        behind, ahead = after[second], before[first]
        after[first] = behind
        costs[first] = np.inf
        if behind < count:
            before[behind] = first
            costs[first] = cost(first, behind)
        if ahead >= 0:
            costs[ahead] = cost(ahead, first)
    return np.flatnonzero(sizes)


def pool_rows(rows: Float32, starts: Starts) -> Float32:
    """Return the mean of each group's rows at unit length, ``(g, d)``; zero where they cancel out."""
    if not len(starts):
        return rows[:0]
    sums = np.add.reduceat(rows.astype(np.float64), starts, axis=0)
    norms = np.sqrt(np.einsum("ij,ij->i", sums, sums))[:, None]
    return (sums / np.where(norms > 0, norms, 1)).astype(np.float32)


def pool_ranges(offsets: NDArray[np.int32], starts: Starts) -> NDArray[np.int32]:
    """Return the characters that each group covers, ``(g, 2)``, from its tokens' ``(n, 2)``; empty ones cover none."""
    if not len(starts):
        return offsets[:0]
    covered = offsets[:, 0] < offsets[:, 1]
    most = np.iinfo(np.int32).max
    first = np.minimum.reduceat(np.where(covered, offsets[:, 0], most), starts)
    end = np.maximum.reduceat(np.where(covered, offsets[:, 1], 0), starts)
    return np.stack([np.where(end > 0, first, 0), end], axis=1).astype(np.int32)

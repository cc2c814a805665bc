"""Regression trees as arrays, evaluated as LightGBM evaluates its own. Pure numpy.

All trees share one list of inner nodes. A child of 0 or more is an inner node, any other is the leaf ``~child``, as in
LightGBM's model files. A value goes left if it is at most the threshold. What a missing value (NaN) does depends on the
node: see :class:`Missing`.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float64

Int32 = NDArray[np.int32]

ZERO = float(np.float32(1e-35))  # values no farther from 0 are zero (LightGBM's kZeroThreshold)


class Missing(IntEnum):
    """What a node sends to its default side: nothing (NaN counts as 0), zero and NaN, or NaN."""

    NONE = 0
    ZERO = 1
    NAN = 2


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees over f features."""

    roots: Int32  # (t,) the first node, or leaf, of each tree
    feature: Int32  # (m,) the feature that each inner node reads; the next five have a value a node too
    threshold: Float64  # the greatest value that goes left
    left: Int32
    right: Int32
    missing: Int32  # one of `Missing`
    default_left: NDArray[np.bool_]  # whether a missing value goes left
    values: Float64  # (l,) the value of each leaf

    def predict(self, rows: NDArray[np.floating]) -> Float64:
        """Return the sum of the trees' values of each row, ``(n,)``."""
        if not len(self.roots):
            return np.zeros(len(rows))
        given = rows.astype(np.float64)
        place = np.repeat(self.roots[None, :], len(rows), axis=0)
        row = np.broadcast_to(np.arange(len(rows))[:, None], place.shape)
        while (inner := place >= 0).any():
            node = place[inner]
            place[inner] = np.where(self._goes_left(node, given[row[inner], self.feature[node]]), *self._children(node))
        total: Float64 = self.values[~place].sum(axis=1)
        return total

    def _children(self, node: Int32) -> tuple[Int32, Int32]:
        return self.left[node], self.right[node]

    def _goes_left(self, node: Int32, value: Float64) -> NDArray[np.bool_]:
        missing, is_nan = self.missing[node], np.isnan(value)
        filled = np.where(is_nan, 0.0, value)
        absent = np.where(missing == Missing.NAN, is_nan, (missing == Missing.ZERO) & (np.abs(filled) <= ZERO))
        return np.where(absent, self.default_left[node], filled <= self.threshold[node])

    def problem(self, features: int) -> str | None:
        """Return why the arrays are no trees over so many features, each child behind its parent; None if they are."""
        inner, leaves = len(self.feature), len(self.values)
        if len({len(part) for part in (self.feature, self.threshold, self.left, self.right, self.missing)}) > 1:
            return "the lists of the nodes differ in length"
        if len(self.default_left) != inner:
            return "the lists of the nodes differ in length"
        numbers = np.arange(inner)
        for child in (self.left, self.right):
            if ((child >= 0) & (child <= numbers)).any() or (child >= inner).any() or (~child >= leaves).any():
                return "a child is neither a later node nor a leaf"
        if (self.roots >= inner).any() or (~self.roots >= leaves).any():
            return "a root is neither a node nor a leaf"
        if ((self.feature < 0) | (self.feature >= features)).any():
            return f"a node reads another feature than those {features} that are named"
        if not np.isin(self.missing, list(Missing)).all():
            return "a node treats missing values in an unknown way"
        if not (np.isfinite(self.threshold).all() and np.isfinite(self.values).all()):
            return "a threshold or a value is not finite"
        return None

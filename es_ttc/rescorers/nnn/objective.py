"""The non-negative elastic net, and certificates that a point solves it.

The problem of NNN decoding (equation 1): a query ``q`` of d components is rebuilt from the rows of a dictionary ``D``,
``(n, d)`` document vectors, by coefficients ``x`` of which none is negative and few are positive::

    minimise  P(x) = 1/2 ||q - D^T x||^2 + l1 1^T x + 1/2 l2 ||x||^2    over x >= 0

All functions are pure and compute in float64. They read the whole dictionary: they verify solutions; the solvers are in
other modules.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

Float64 = NDArray[np.float64]
Rows = Float32 | Float64
"""Vectors as rows, float32 or float64."""


@dataclass(frozen=True, slots=True)
class Penalty:
    """The penalty of coefficients: ``l1 1^T x + 1/2 l2 ||x||^2``.

    The paper's variants are values of it: NNN-Fix has both, L1-Fix ``l2 = 0``, L2-Fix ``l1 = 0``.

    Attributes:
        l1: The residual's inner product that a document must exceed to be selected; for unit vectors a cosine times
            the query's length. Finite, not negative.
        l2: Spreads weight over documents that resemble each other, and makes the solution unique. Finite, not
            negative.
    """

    l1: float
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("l1", self.l1), ("l2", self.l2)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"[{name}] is {value}: it must be finite and not negative")


def residual(rows: Rows, query: Rows, x: Rows) -> Float64:
    """Return ``q - D^T x``, ``(d,)``: the part of the query that the selected documents do not explain."""
    selected = np.flatnonzero(x)
    left: Float64 = query.astype(np.float64) - x[selected].astype(np.float64) @ rows[selected].astype(np.float64)
    return left


def objective(rows: Rows, query: Rows, x: Rows, penalty: Penalty) -> float:
    """Return ``P(x)``."""
    left = residual(rows, query, x)
    coefficients = x.astype(np.float64)
    return float(left @ left / 2 + penalty.l1 * coefficients.sum() + penalty.l2 / 2 * (coefficients @ coefficients))


def gradient(rows: Rows, query: Rows, x: Rows, penalty: Penalty) -> Float64:
    """Return the gradient of ``P``, ``(n,)``: ``l1 + l2 x - D (q - D^T x)``."""
    slope: Float64 = penalty.l1 + penalty.l2 * x.astype(np.float64) - rows @ residual(rows, query, x)
    return slope


def kkt_residual(x: Rows, slope: Float64) -> float:
    """Return the violation of the Karush-Kuhn-Tucker conditions; 0 if and only if the point is a solution.

    A positive coefficient's slope must be 0, a zero one's must not be negative: no document outside the selection has
    an inner product with the residual greater than l1.
    """
    return float(np.max(np.where(x > 0, np.abs(slope), -slope), initial=0.0))


def dual_point(rows: Rows, query: Rows, x: Rows, penalty: Penalty) -> Float64:
    """Return a point of the dual problem, ``(d,)``: the residual, shortened until it is feasible or better.

    Without l2 a dual point must have no inner product above l1 with any document. With l2 any point will do, and the
    better of the residual and the shortened residual is taken.
    """
    left = residual(rows, query, x)
    greatest = float(np.max(rows @ left, initial=0.0))
    shortened: Float64 = left * min(1.0, penalty.l1 / greatest) if greatest > 0 else left
    if penalty.l2 == 0:
        return shortened
    return max((shortened, left), key=lambda point: dual_objective(rows, query, point, penalty))


def dual_objective(rows: Rows, query: Rows, point: Float64, penalty: Penalty) -> float:
    """Return the dual objective: no greater than ``P`` anywhere, and equal to its minimum at the dual's solution.

    Without l2 the ``(d,)`` point must be feasible: no document's inner product with it is above l1.
    """
    value = float(query.astype(np.float64) @ point - point @ point / 2)
    if penalty.l2 == 0:
        return value
    excess = np.maximum(rows @ point - penalty.l1, 0)
    return value - float(excess @ excess) / (2 * penalty.l2)


def duality_gap(rows: Rows, query: Rows, x: Rows, penalty: Penalty) -> float:
    """Return ``P(x)`` less the dual objective: an upper bound of the gain of any other point, never negative.

    With ``l1 = l2 = 0`` the shortened residual is 0 unless no document resembles what is left, and the bound says
    little: the Karush-Kuhn-Tucker residual is the certificate there.
    """
    point = dual_point(rows, query, x, penalty)
    return max(0.0, objective(rows, query, x, penalty) - dual_objective(rows, query, point, penalty))

"""Certificates that a point solves the problem, by its definition, in float64."""

import numpy as np

from es_ttc.rescorers.nnn.objective import Penalty, Rows, dual_objective
from es_ttc.vectors.tokens import Float64


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


def duality_gap(rows: Rows, query: Rows, x: Rows, penalty: Penalty) -> float:
    """Return ``P(x)`` less the dual objective: an upper bound of the gain of any other point, never negative.

    With ``l1 = l2 = 0`` the shortened residual is 0 unless no document resembles what is left, and the bound says
    little: the Karush-Kuhn-Tucker residual is the certificate there.
    """
    point = dual_point(rows, query, x, penalty)
    return max(0.0, objective(rows, query, x, penalty) - dual_objective(rows, query, point, penalty))

"""The non-negative elastic net.

The problem of NNN decoding (equation 1): a query ``q`` of d components is rebuilt from the rows of a dictionary ``D``,
``(n, d)`` document vectors, by coefficients ``x`` of which none is negative and few are positive::

    minimise  P(x) = 1/2 ||q - D^T x||^2 + l1 1^T x + 1/2 l2 ||x||^2    over x >= 0
"""

import math
from dataclasses import dataclass

import numpy as np

from es_ttc.vectors.tokens import Float32, Float64

Rows = Float32 | Float64  # vectors as rows, float32 or float64


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


def dual_objective(rows: Rows, query: Rows, point: Float64, penalty: Penalty) -> float:
    """Return the dual objective: no greater than ``P`` anywhere, and equal to its minimum at the dual's solution.

    Without l2 the ``(d,)`` point must be feasible: no document's inner product with it is above l1.
    """
    value = float(query.astype(np.float64) @ point - point @ point / 2)
    if penalty.l2 == 0:
        return value
    excess = np.maximum(rows @ point - penalty.l1, 0)
    return value - float(excess @ excess) / (2 * penalty.l2)

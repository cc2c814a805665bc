"""FISTA for the non-negative elastic net, as in equation 5 of the paper: a fixed number of steps, a batch of queries.

It is what NNN-Tr unrolls and what published figures come from. As a solver :mod:`es_ttc.rescorers.nnn.active_set` is
faster by orders of magnitude and exact: at a small number of steps FISTA's support is not the solution's (many small
coefficients that have not died yet), so rank by coefficient and cut.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from es_ttc.rescorers.nnn.objective import Penalty, Rows
from es_ttc.vectors.tokens import Float64


def lipschitz(rows: Rows, l2: float = 0.0) -> float:
    """Return ``L``, the greatest eigenvalue of ``D^T D`` plus l2: the steepest the gradient's slope gets."""
    smaller = rows if rows.shape[0] < rows.shape[1] else rows.T
    gram: Float64 = (smaller @ smaller.T).astype(np.float64)
    return float(np.linalg.eigvalsh(gram)[-1]) + l2 if len(gram) else l2


def fista(
    rows: Rows, queries: Rows, penalty: Penalty, *, steps: int, restart: bool = False, bound: float | None = None
) -> Rows:
    """Return the coefficients after so many steps from 0, ``(b, n)``; see :func:`iterates`."""
    if steps < 1:
        raise ValueError(f"[steps] is {steps}: FISTA takes at least one")
    return next(islice(iterates(rows, queries, penalty, restart=restart, bound=bound), steps - 1, None))


def iterates(
    rows: Rows, queries: Rows, penalty: Penalty, *, restart: bool = False, bound: float | None = None
) -> Iterator[Rows]:
    """Yield the coefficients after the first step, the second, and so on without end, ``(b, n)``.

    The first is ``ReLU(D q - l1) / L``: it ranks documents as dense retrieval does.

    Args:
        queries: ``(b, d)`` of the rows' type, whose precision is the computation's; solved independently.
        restart: Forget the momentum of a query whenever it points uphill (O'Donoghue and Candes, "Adaptive Restart
            for Accelerated Gradient Schemes", the gradient scheme): far fewer steps, not in the paper.
        bound: ``L``, from :func:`lipschitz` with the same l2, which is computed if None.
    """
    size = lipschitz(rows, penalty.l2) if bound is None else bound
    step = 1 / size if size > 0 else 0.0
    x: Rows = np.zeros((len(queries), len(rows)), rows.dtype)
    ahead: Rows = x
    theta: Rows = np.ones((len(queries), 1), rows.dtype)
    while True:
        slope = (ahead @ rows - queries) @ rows.T + penalty.l2 * ahead + penalty.l1
        following: Rows = np.maximum(ahead - step * slope, 0)
        moved = following - x
        if restart:
            uphill = np.einsum("bn,bn->b", ahead - following, moved) > 0
            theta[uphill] = 1
        x = following
        yield x
        theta_next = (1 + np.sqrt(1 + 4 * theta**2)) / 2
        ahead = x + (theta - 1) / theta_next * moved
        theta = theta_next

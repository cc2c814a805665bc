"""The path of solutions over l1, from large to small: few documents first, more as l1 falls.

While the selection stays the same its coefficients are linear in l1: with ``w = H^-1 1`` they grow by ``t w`` and a
document's inner product with the residual falls by ``t <d, D_S^T w>`` as l1 falls by ``t``. So the next l1 at which a
document joins or leaves is known, and the path jumps from change to change; each point is solved anew by the active
set, begun from the last selection, and is certified like any other solution.
"""

from collections.abc import Iterator

import numpy as np

from es_ttc.rescorers.nnn.active_set import TOLERANCE, Solution, solve
from es_ttc.rescorers.nnn.dictionary import Dictionary, Face
from es_ttc.rescorers.nnn.objective import Penalty, Rows
from es_ttc.vectors.tokens import Float64

RESOLUTION = 1e-5  # minimum step of l1, relative to the greatest: closer changes are not distinguished

_ROUNDING = 1e-12


def greatest_l1(dictionary: Dictionary, query: Rows) -> float:
    """Return the l1 from which on nothing is selected: the greatest inner product with the query, or 0."""
    return max(0.0, float(np.max(dictionary.products(query.astype(np.float64)), initial=0.0)))


def changes(
    dictionary: Dictionary, query: Rows, *, l2: float = 0.0, l1: float = 0.0, tolerance: float = TOLERANCE
) -> Iterator[Solution]:
    """Yield a solution just after each change of the selection as l1 falls; the last is that for ``l1`` itself."""
    vector = query.astype(np.float64)
    slack = tolerance * float(np.linalg.norm(vector)) * dictionary.longest
    current = greatest_l1(dictionary, query)
    least = RESOLUTION * current
    solution: Solution | None = None
    while True:
        fall = 0.0 if solution is None else _until_change(dictionary, vector, solution, slack)
        current = max(l1, current - fall - least)
        start = None if solution is None else solution.support
        solution = solve(dictionary, query, Penalty(current, l2), start=start, tolerance=tolerance)
        yield solution
        if current == l1:
            return


def select(dictionary: Dictionary, query: Rows, documents: int, *, l2: float = 0.0) -> Solution:
    """Return the first solution with so many documents: more where several join at once, fewer at the path's end."""
    if documents < 1:
        raise ValueError(f"[documents] is {documents}: it must be 1 or more")
    path = changes(dictionary, query, l2=l2)
    solution = next(path)
    while len(solution.support) < documents:
        following = next(path, None)
        if following is None:
            break
        solution = following
    return solution


def _until_change(dictionary: Dictionary, query: Float64, solution: Solution, slack: float) -> float:
    """Return by how much l1 falls until a document joins or leaves; infinite where none ever does."""
    face = Face.empty(dictionary.dims).extended(solution.support, dictionary, query, solution.penalty)
    growth = face.solved(np.ones(len(face.support)))
    fall = growth @ face.rows
    products, rates = dictionary.products(solution.residual), dictionary.products(fall)
    outside = np.ones(len(dictionary), np.bool_)
    outside[solution.support] = False
    near = outside & (solution.penalty.l1 - products < 2 * dictionary.rounding(solution.residual))
    far = outside & ~near
    exact = dictionary.at(np.flatnonzero(near))
    join = min(
        _meeting(solution.penalty.l1 + slack, products[far], rates[far], dictionary.rounding(fall)),
        _meeting(solution.penalty.l1 + slack, exact @ solution.residual, exact @ fall, _ROUNDING),
    )
    shrinking = growth < 0
    leave = float(np.min(-solution.coefficients[shrinking] / growth[shrinking], initial=np.inf))
    return min(join, leave)


def _meeting(l1: float, products: Rows, rates: Rows, rounding: float) -> float:
    """Return how far l1 falls until it reaches a product, while both fall; infinite if both fall equally fast."""
    slower = rates < 1 - rounding
    return float(np.min(np.maximum(l1 - products[slower], 0) / (1 - rates[slower]), initial=np.inf))

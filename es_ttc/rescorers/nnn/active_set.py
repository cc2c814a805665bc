"""The default solver: an active-set method in the manner of Lawson and Hanson (Solving Least Squares Problems, 23.3).

The state is a selection of documents and the minimum of the objective on it, which has positive coefficients only. Any
document whose inner product with the residual exceeds l1 improves on it; none left is the Karush-Kuhn-Tucker
certificate. The worst offenders join at once, those that the new minimum makes negative leave, and the outcome is taken
if it is feasible and lower. Where that fails, the worst offender grows alone until the objective stops falling or
another coefficient reaches zero: this always lowers the objective. So no selection comes twice, and the method ends; a
limit of iterations protects against rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.nnn.dictionary import AtomPlaces, Dictionary, Face
from es_ttc.rescorers.nnn.objective import Penalty, Rows
from es_ttc.vectors.tokens import Float64

TOLERANCE = 1e-9
"""By how much a certified solution may break the conditions, relative to the query's length times the longest row's.

What float64 cannot resolve comes on top, which is less unless coefficients are beyond 10^5: without l1 and l2, vectors
that depend on each other but for the rounding of their storage can have such.
"""

_ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution, or the best point found."""

    documents: int
    support: AtomPlaces  # (m,) positions of the selected documents, ascending
    coefficients: Float64  # (m,) float64, all positive
    residual: Float64  # (d,) float64, `q - D^T x`
    penalty: Penalty
    kkt_residual: float  # the violation of the Karush-Kuhn-Tucker conditions
    iterations: int  # number of products of the whole dictionary with a vector
    converged: bool  # whether `kkt_residual` is within the tolerance: the solution is certified

    @property
    def x(self) -> Float64:
        """The coefficients of all documents, ``(n,)`` float64."""
        x = np.zeros(self.documents)
        x[self.support] = self.coefficients
        return x


def solve(
    dictionary: Dictionary,
    query: Rows,
    penalty: Penalty,
    *,
    start: AtomPlaces | None = None,
    tolerance: float = TOLERANCE,
    max_iterations: int | None = None,
) -> Solution:
    """Solve the problem of :mod:`es_ttc.rescorers.nnn.objective` for one query.

    With ``l2 > 0`` the solution is unique. Else several may do equally well (of duplicates only the first is taken
    then), and any of them is returned, deterministically.

    Args:
        dictionary: The documents' vectors.
        query: ``(d,)`` finite, of any length; 0 selects nothing.
        penalty: l1 and l2.
        start: Positions of an initial selection (a warm start): another solution's support.
        tolerance: See :data:`TOLERANCE`.
        max_iterations: Maximum number of iterations; ``3 n + 100`` if None. When it is reached, the best point is
            returned, not converged.

    Raises:
        ValueError: The query is not of the dictionary's d components, or not finite.
    """
    vector = _checked(query, dictionary)
    required = tolerance * float(np.linalg.norm(vector)) * dictionary.longest
    bound = 3 * len(dictionary) + 100 if max_iterations is None else max_iterations
    face, x = Face.empty(dictionary.dims), np.empty(0)
    if start is not None and len(start):
        face, x = _at_once(face.extended(np.unique(start), dictionary, vector, penalty), face, x)
    iterations = 0
    while True:
        residual = vector - x @ face.rows
        iterations += 1
        slack = required + _ROUNDING * float(x.sum()) * dictionary.longest**2
        offenders, excess = _offenders(dictionary, residual, penalty.l1, face.support, slack, most=len(x) + 1)
        stationary = float(np.abs(face.slope(x)).max(initial=0.0))
        if not len(offenders) or iterations >= bound:
            return _solution(dictionary, face, x, residual, penalty, max(stationary, excess), iterations, slack)
        joined = face.extended(offenders, dictionary, vector, penalty)
        better, coefficients = _at_once(joined, face, x)
        if better is face:
            joined = face.extended(offenders[:1], dictionary, vector, penalty)
            better, coefficients = _one_alone(joined, np.append(x, 0.0), excess)
        face, x = better, coefficients


def solve_batch(
    dictionary: Dictionary,
    queries: Rows,
    penalty: Penalty,
    *,
    starts: Sequence[AtomPlaces | None] | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Solution]:
    """Solve the problem for each row of ``queries``, ``(b, d)``; see :func:`solve`."""
    for query, start in zip(queries, repeat(None, len(queries)) if starts is None else starts, strict=True):
        yield solve(dictionary, query, penalty, start=start, tolerance=tolerance)


def _offenders(
    dictionary: Dictionary, residual: Float64, l1: float, support: AtomPlaces, slack: float, *, most: int
) -> tuple[AtomPlaces, float]:
    """Return the documents that exceed l1 by more than the slack, the worst first, and the greatest excess.

    Near the threshold float32 products are computed again in float64, so the certificate is as good as in float64.
    """
    products = dictionary.products(residual)
    products[support] = -np.inf
    rounding = dictionary.rounding(residual)
    certain = np.flatnonzero(products > l1 + rounding + slack)
    if len(certain):
        order = _greatest(products, certain, most)
        return order, float(dictionary.at(order[:1])[0] @ residual) - l1
    near = np.flatnonzero(products > l1 - rounding)
    if not len(near):
        return near, 0.0
    exact = dictionary.at(near) @ residual - l1
    offenders = np.flatnonzero(exact > slack)
    return near[_greatest(exact, offenders, most)], max(0.0, float(exact.max()))


def _greatest(values: Rows, places: AtomPlaces, most: int) -> AtomPlaces:
    """Return the positions of the greatest values, descending, equal ones in order of position."""
    if len(places) > most:
        least = np.partition(values[places], -most)[-most]
        places = places[values[places] >= least]
    return places[np.argsort(-values[places], kind="stable")][:most]


def _at_once(joined: Face, face: Face, x: Float64) -> tuple[Face, Float64]:
    """Return the minimum on the joined selection less what is negative there, or the given state if it is no better."""
    while len(joined.support):
        proposal = joined.solved(joined.target)
        if proposal.min() > 0:
            lower = joined.value(proposal) * (1 - _ROUNDING) < face.value(x)  # both are negative: lower beyond rounding
            return (joined, proposal) if lower and joined.is_independent() else (face, x)
        joined = joined.kept(proposal > 0)
    return face, x


def _one_alone(face: Face, x: Float64, excess: float) -> tuple[Face, Float64]:
    """Lower the objective by the face's last document, whose coefficient is still 0; its slope there is the excess."""
    others = np.arange(len(x)) < len(x) - 1
    across = face.hessian[:-1, -1]
    direction = np.append(-face.kept(others).solved(across), 1.0)
    # Of a document that depends on the others the curvature is 0 up to rounding: another one's zero will stop it.
    curvature = max(face.hessian[-1, -1] + float(across @ direction[:-1]), _ROUNDING * face.hessian[-1, -1])
    x, blocked = _moved(x, direction, excess / curvature)
    while blocked.any():
        face, x = face.kept(~blocked), x[~blocked]
        direction = face.solved(face.target) - x
        falling = -float(direction @ face.slope(x))
        curvature = float(direction @ face.hessian @ direction)
        if falling <= 0 or curvature <= 0:
            break
        x, blocked = _moved(x, direction, min(1.0, falling / curvature))
    return face, x


def _moved(x: Float64, direction: Float64, most: float) -> tuple[Float64, NDArray[np.bool_]]:
    """Move along a direction until a coefficient reaches zero, at most a length; return also which are then zero."""
    reach = np.full(len(x), np.inf)
    np.divide(x, -direction, out=reach, where=direction < 0)
    length = min(most, float(reach.min(initial=np.inf)))
    blocked = reach <= length
    moved = np.where(blocked, 0.0, x + length * direction)
    return moved, blocked


def _solution(
    dictionary: Dictionary,
    face: Face,
    x: Float64,
    residual: Float64,
    penalty: Penalty,
    kkt_residual: float,
    iterations: int,
    slack: float,
) -> Solution:
    ascending = np.argsort(face.support)
    return Solution(
        len(dictionary),
        face.support[ascending],
        x[ascending],
        residual,
        penalty,
        kkt_residual,
        iterations,
        kkt_residual <= slack,
    )


def _checked(query: Rows, dictionary: Dictionary) -> Float64:
    if query.shape != (dictionary.dims,):
        raise ValueError(f"a query of shape {query.shape}, documents of {dictionary.dims} components")
    if not np.isfinite(query).all():
        raise ValueError("a query's components must be finite")
    vector: Float64 = query.astype(np.float64)
    return vector

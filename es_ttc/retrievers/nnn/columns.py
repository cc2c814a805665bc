"""Column generation: the exact solution over a corpus of any size, from a few kNN searches.

The problem of :mod:`es_ttc.rescorers.nnn.objective` is solved on the documents known so far. Its residual ``r`` is
then the query of a kNN search: a document that is not known and has ``<d, r> > l1`` would improve on the solution, so
it becomes known and the problem is solved anew. Where no document has, the Karush-Kuhn-Tucker conditions hold over the
whole corpus: the solution is the corpus's own. (Dantzig and Wolfe, *Decomposition principle for linear programs*, 1960,
is where adding columns by a search for the worst reduced cost comes from.)

All vectors have unit length, so the order by cosine, in which an engine searches, is the order by inner product; the
thresholds are computed from the documents' vectors in float64, never from the engine's scores. An approximate search
may miss a document: the certificate is then as good as its recall.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.nnn.active_set import TOLERANCE, Solution
from es_ttc.rescorers.nnn.dictionary import AtomPlaces, Dictionary
from es_ttc.rescorers.nnn.objective import Penalty, dual_objective
from es_ttc.retrievers.base import Documents, Search
from es_ttc.vectors.tokens import Float32, Float64

Solver = Callable[[Dictionary, Float64, AtomPlaces | None], Solution]
"""Solves the problem on a dictionary for a query, from an initial selection."""

Stop = Literal["certified", "rounds", "time", "changed", "rounding", "empty"]

_SLACK = 10 * TOLERANCE
"""Excess over l1, relative to the query's length, from which a document is added: more than the solver's own tolerance,
so that it makes a difference there."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the searches."""

    candidates: int  # documents of the first search, those nearest to the query; 1 or more
    # Documents of each further search in addition to the selected ones, which are always found again; 1 or more
    batch: int
    rounds: int  # maximum number of searches; 1 or more
    exact: bool  # whether they compare every vector


@dataclass(frozen=True, slots=True)
class CorpusSolution:
    """The solution over a corpus, or the best one found in time."""

    documents: Documents  # (n,) the documents of the dictionary, in the order found
    ids: Sequence[str]  # their ids, for display
    rows: Float32  # (n, d) float32, their vectors
    solution: Solution  # on this dictionary
    searches: int  # kNN searches made, one round trip each
    # `certified` if no document of the corpus violates the conditions, else what ended the search: the limit of
    # searches, the time, documents that changed meanwhile and cannot be read, rounding, which kept the solver from its
    # tolerance, or an empty result: the searches found no document, so there is nothing to certify
    stop: Stop
    # Upper bound of how far the objective over the whole corpus can be below the solution's; 0 if it is certified or
    # empty. As exact as the searches' recall.
    gap: float


@dataclass(frozen=True, slots=True)
class _SearchBound:
    """The bound that one search gives for all documents that it did not return."""

    direction: Float64  # (d,) the query vector of the search
    most: float  # no other document has a greater inner product with it; minus infinity where there is no other
    complete: bool  # whether all returned documents are in the dictionary

    @property
    def is_whole_corpus(self) -> bool:
        """Whether all documents are in the dictionary."""
        return self.complete and self.most == -math.inf


@dataclass(slots=True)
class _ActiveColumns:
    """The documents of the dictionary."""

    rows: Float32
    documents: Documents = field(default_factory=lambda: np.empty(0, np.intp))
    ids: list[str] = field(default_factory=list)

    async def find(self, search: Search, direction: Float64, k: int, *, exact: bool) -> tuple[_SearchBound, Float64]:
        """Search, add new documents, and return the search's bound and the new ones' products with the direction."""
        unit = direction / np.linalg.norm(direction)
        [found] = await search.nearest(unit.astype(np.float32)[np.newaxis], k, exact=exact)
        new = found.documents[~np.isin(found.documents, self.documents)]
        before, complete = len(self.documents), True
        if len(new):
            known = await search.window(new, frozenset({Feature.POOLED}))
            assert known.window.pooled is not None  # noqa: S101 - asked for
            complete = len(known.documents) == len(new)
            self.documents = np.concatenate((self.documents, known.documents))
            self.ids += known.window.ids
            self.rows = np.concatenate((self.rows, known.window.pooled))
        products = self.rows.astype(np.float64) @ direction
        returned = products[np.isin(self.documents, found.documents)]
        no_others = len(found.documents) < k and found.complete
        most = -math.inf if no_others else float(returned.min(initial=math.inf))
        return _SearchBound(direction, most, complete), products[before:]


async def column_generation(query: Float64, search: Search, solve: Solver, effort: SearchLimits) -> CorpusSolution:
    """Solve the problem of a ``(d,)`` query, not zero, over all findable documents; end early for lack of time."""
    columns = _ActiveColumns(np.empty((0, len(query)), np.float32))
    slack = _SLACK * float(np.linalg.norm(query))
    bounds: list[_SearchBound] = []
    longest = 0.0

    async def find(direction: Float64, k: int) -> Float64:
        nonlocal longest
        began = time.monotonic()
        seen, products = await columns.find(search, direction, k, exact=effort.exact)
        bounds.append(seen)
        longest = max(longest, time.monotonic() - began)
        return products

    async def solved(start: AtomPlaces | None) -> Solution:
        return await search.compute(solve, Dictionary.of(columns.rows), query, start)

    def ended(stop: Stop) -> CorpusSolution:
        stop = stop if solution.converged or stop != "certified" else "rounding"
        if not len(columns.documents):
            stop = "empty"
        gap = 0.0 if stop in ("certified", "empty") else _gap(columns.rows, query, solution, bounds)
        whole = replace(solution, documents=len(columns.documents))  # the documents added last changed nothing
        return CorpusSolution(columns.documents, columns.ids, columns.rows, whole, len(bounds), stop, gap)

    await find(query, effort.candidates)
    solution = await solved(None)
    batch = effort.batch
    while True:
        threshold = solution.penalty.l1 + slack
        # No vector of unit length has a greater inner product with the residual than the residual's own length.
        if bounds[-1].is_whole_corpus or float(np.linalg.norm(solution.residual)) <= threshold:
            return ended("certified")
        if len(bounds) >= effort.rounds:
            return ended("rounds")
        if search.seconds_left < longest:
            return ended("time")
        products = await find(solution.residual, len(solution.support) + batch)
        if (products > threshold).any():
            solution = await solved(solution.support)
        elif bounds[-1].most > threshold:
            batch *= 2  # documents of the dictionary, copies of selected ones, have filled the response
        else:
            return ended("certified" if bounds[-1].complete else "changed")


def _gap(rows: Float32, query: Float64, solution: Solution, bounds: list[_SearchBound]) -> float:
    """Return the objective minus the best lower bound from the searches."""
    x, penalty = solution.coefficients, solution.penalty
    primal = float(solution.residual @ solution.residual + penalty.l2 * (x @ x)) / 2 + penalty.l1 * float(x.sum())
    return max(0.0, primal - max(_lower_bound(rows, query, seen, penalty) for seen in bounds))


def _lower_bound(rows: Float32, query: Float64, seen: _SearchBound, penalty: Penalty) -> float:
    """Return a value of the dual over the whole corpus.

    The query vector is shortened until no document outside the result exceeds l1. The excess of documents in the
    dictionary reduces the bound if l2 allows it, and is not allowed otherwise.
    """
    products = rows.astype(np.float64) @ seen.direction
    bounds = {max(seen.most, float(products.max(initial=0.0)))}
    if penalty.l2 > 0:
        bounds.add(seen.most)
    points = [seen.direction * (min(1.0, penalty.l1 / bound) if bound > 0 else 1.0) for bound in bounds]
    return max(dual_objective(rows, query, point, penalty) for point in points)

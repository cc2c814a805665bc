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
from es_ttc.rescorers.nnn.dictionary import Dictionary, Places
from es_ttc.rescorers.nnn.objective import Float64, Penalty, dual_objective
from es_ttc.retrievers.base import Documents, Search
from es_ttc.vectors.tokens import Float32

Solver = Callable[[Dictionary, Float64, Places | None], Solution]
"""Solves the problem on a dictionary for a query, from a selection to begin with."""

Stop = Literal["certified", "rounds", "time", "changed", "rounding"]

_SLACK = 10 * TOLERANCE
"""By how much a document must exceed l1, relative to the query's length, to become known: more than the solver's own
tolerance, so that it makes a difference there."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How much is searched.

    Attributes:
        candidates: Documents of the first search, those nearest to the query; 1 or more.
        batch: Documents of each further search beside the selected ones, which are always found again; 1 or more.
        rounds: Most searches; 1 or more.
        exact: Whether they compare every vector.
    """

    candidates: int
    batch: int
    rounds: int
    exact: bool


@dataclass(frozen=True, slots=True)
class CorpusSolution:
    """The solution over a corpus, or the best that was found in the time.

    Attributes:
        documents: ``(n,)`` the documents that became known, in the order found.
        ids: Their ids, to be shown.
        rows: ``(n, d)`` float32, their vectors.
        solution: On this dictionary.
        searches: kNN searches made, one round trip each.
        stop: ``certified`` where no document of the corpus breaks the conditions, else what ended the search: its
            bound on rounds, the time, documents that changed while it ran and cannot be read, or rounding, which kept
            the solver from its tolerance.
        gap: Upper bound of how far the objective over the whole corpus can be below the solution's; 0 where it is
            certified. As good as the searches' recall.
    """

    documents: Documents
    ids: Sequence[str]
    rows: Float32
    solution: Solution
    searches: int
    stop: Stop
    gap: float


@dataclass(frozen=True, slots=True)
class _SearchBound:
    """What one search tells about all documents that it did not return.

    Attributes:
        direction: ``(d,)`` what was asked for.
        most: No other document has a greater inner product with it; minus infinity where there is no other.
        complete: Whether all documents that it did return are known.
    """

    direction: Float64
    most: float
    complete: bool

    @property
    def is_whole_corpus(self) -> bool:
        """Whether there is no document that is not known."""
        return self.complete and self.most == -math.inf


@dataclass(slots=True)
class _ActiveColumns:
    """The documents known so far."""

    rows: Float32
    documents: Documents = field(default_factory=lambda: np.empty(0, np.intp))
    ids: list[str] = field(default_factory=list)

    async def find(self, search: Search, direction: Float64, k: int, *, exact: bool) -> tuple[_SearchBound, Float64]:
        """Search, take in what is new, and return what the search tells and the new ones' products with the direction.

        Raises:
            EngineError: The engine failed.
        """
        asked = direction / np.linalg.norm(direction)
        [found] = await search.nearest(asked.astype(np.float32)[np.newaxis], k, exact=exact)
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
    """Solve the problem over all documents that a search can find.

    It ends early, with what it has, when another round would take longer than the time that is left.

    Args:
        query: ``(d,)``, not zero.
        search: Finds documents.
        solve: Solves the problem on a dictionary.
        effort: How much is searched.

    Raises:
        EngineError: The engine failed.
    """
    columns = _ActiveColumns(np.empty((0, len(query)), np.float32))
    slack = _SLACK * float(np.linalg.norm(query))
    all_seen: list[_SearchBound] = []
    longest = 0.0

    async def find(direction: Float64, k: int) -> Float64:
        nonlocal longest
        began = time.monotonic()
        seen, products = await columns.find(search, direction, k, exact=effort.exact)
        all_seen.append(seen)
        longest = max(longest, time.monotonic() - began)
        return products

    async def solved(start: Places | None) -> Solution:
        return await search.compute(solve, Dictionary.of(columns.rows), query, start)

    def ended(stop: Stop) -> CorpusSolution:
        stop = stop if solution.converged or stop != "certified" else "rounding"
        gap = 0.0 if stop == "certified" else _gap(columns.rows, query, solution, all_seen)
        whole = replace(solution, documents=len(columns.documents))  # the last to become known changed nothing
        return CorpusSolution(columns.documents, columns.ids, columns.rows, whole, len(all_seen), stop, gap)

    await find(query, effort.candidates)
    solution = await solved(None)
    batch = effort.batch
    while True:
        threshold = solution.penalty.l1 + slack
        # No vector of unit length has a greater inner product with the residual than the residual's own length.
        if all_seen[-1].is_whole_corpus or float(np.linalg.norm(solution.residual)) <= threshold:
            return ended("certified")
        if len(all_seen) >= effort.rounds:
            return ended("rounds")
        if search.seconds_left < longest:
            return ended("time")
        products = await find(solution.residual, len(solution.support) + batch)
        if (products > threshold).any():
            solution = await solved(solution.support)
        elif all_seen[-1].most > threshold:
            batch *= 2  # documents that are known already, copies of selected ones, have filled the answer
        else:
            return ended("certified" if all_seen[-1].complete else "changed")


def _gap(rows: Float32, query: Float64, solution: Solution, all_seen: list[_SearchBound]) -> float:
    """Return the objective less the best lower bound that the searches prove."""
    x, penalty = solution.coefficients, solution.penalty
    primal = float(solution.residual @ solution.residual + penalty.l2 * (x @ x)) / 2 + penalty.l1 * float(x.sum())
    return max(0.0, primal - max(_lower_bound(rows, query, seen, penalty) for seen in all_seen))


def _lower_bound(rows: Float32, query: Float64, seen: _SearchBound, penalty: Penalty) -> float:
    """Return a value of the dual over the whole corpus.

    What was asked for is shortened until no document that was not returned exceeds l1; what the known ones exceed it by
    counts against the bound where l2 allows it, and is not allowed otherwise.
    """
    products = rows.astype(np.float64) @ seen.direction
    bounds = {max(seen.most, float(products.max(initial=0.0)))}
    if penalty.l2 > 0:
        bounds.add(seen.most)
    points = [seen.direction * (min(1.0, penalty.l1 / bound) if bound > 0 else 1.0) for bound in bounds]
    return max(dual_objective(rows, query, point, penalty) for point in points)

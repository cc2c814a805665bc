"""NNN decoding of the whole corpus ("Non-negative Elastic Net Decoding for Information Retrieval")."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.base import Feature, Query
from es_ttc.rescorers.nnn import Dictionary, NnnParams, Penalty, Solution, select, solve
from es_ttc.rescorers.nnn.dictionary import AtomPlaces
from es_ttc.rescorers.nnn.rescorer import details, mean_of, scores
from es_ttc.retrievers.base import Retrieved, Search, Vectors
from es_ttc.retrievers.nnn.columns import CorpusSolution, SearchLimits, Solver, column_generation
from es_ttc.vectors.tokens import Float64


class NnnRetrieverParams(NnnParams):
    """Parameters of NNN retrieval: those of NNN rescoring, and the limits of the searches."""

    candidates: int = Field(100, ge=1, le=10_000, description="Number of documents of the first search, by the query.")
    batch: int = Field(
        50,
        ge=1,
        le=1_000,
        description="Number of further documents of each following search, by the residual of the query.",
    )
    rounds: int = Field(20, ge=1, le=1_000, description="Maximum number of kNN searches; one round trip each.")
    exact: bool = Field(
        False,
        description="Compare every document's vector in each search, so that the certificate is exact; otherwise it is "
        "as exact as the recall of the approximate index.",
    )
    rest: Literal["nearest", "none"] = Field(
        "nearest",
        description="Documents after the selected ones: nearest, those nearest to the query among all documents found; "
        "none, so that fewer than k may be returned.",
    )


class NnnRetriever:
    """Select the documents of the whole corpus that together reconstruct the query, by a few kNN searches.

    The rescorer's problem is solved for the documents nearest to the query; then the residual of the query is searched,
    and any document that improves the solution is added, until there is none (column generation). `certified` in the
    response says that this point was reached; otherwise `duality_gap` bounds the remaining gain in the objective.
    Documents with a zero coefficient follow by their cosine with the query.
    """

    name: ClassVar[str] = "nnn"
    Params: ClassVar[type[NnnRetrieverParams]] = NnnRetrieverParams
    similarity: ClassVar[bool] = False

    def needs(self, params: NnnRetrieverParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def searches(self, params: NnnRetrieverParams) -> frozenset[Vectors]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Vectors.POOLED})

    async def retrieve(self, query: Query, search: Search, k: int, params: NnnRetrieverParams) -> Retrieved:
        """Return the selected documents by coefficient, followed by the rest."""
        mean = mean_of(query)
        if not mean.any():
            raise InvalidRequest("the query's texts cancel each other out: their mean vector is 0")
        first = params.candidates if params.rest == "none" else max(k, params.candidates)
        effort = SearchLimits(first, params.batch, params.rounds, params.exact)
        outcome = await column_generation(mean, search, solver(params), effort)
        return _retrieved(outcome, mean, k, params, shown=search.details)


def solver(params: NnnParams) -> Solver:
    """Return the solver for some parameters, for a dictionary of any size."""

    def solve_at(dictionary: Dictionary, query: Float64, start: AtomPlaces | None) -> Solution:
        if params.documents is not None:
            return select(dictionary, query, params.documents, l2=params.l2)
        return solve(dictionary, query, Penalty(params.l1, params.l2), start=start)

    return solve_at


def _retrieved(
    outcome: CorpusSolution, query: Float64, k: int, params: NnnRetrieverParams, *, shown: bool
) -> Retrieved:
    x = outcome.solution.x
    by_cosine = np.argsort(-(outcome.rows @ query), kind="stable")
    ordered = scores(x[by_cosine])
    order = np.argsort(-ordered, kind="stable")[:k]
    if params.rest == "none":
        order = order[x[by_cosine[order]] > 0]
    places = by_cosine[order]
    found_details: list[dict[str, Any]] = []
    if shown:
        known = details(outcome.solution, outcome.rows, query, outcome.ids)
        found_details = [known[place] for place in places]
    return Retrieved(outcome.documents[places], ordered[order], found_details, _summary(outcome))


def _summary(outcome: CorpusSolution) -> dict[str, object]:
    solution = outcome.solution
    summary: dict[str, object] = {
        "certified": outcome.stop == "certified",
        "knn_searches": outcome.searches,
        "documents_seen": len(outcome.documents),
        "selected": len(solution.support),
        "l1": solution.penalty.l1,
        "l2": solution.penalty.l2,
        "residual_norm": float(np.linalg.norm(solution.residual)),
    }
    if outcome.stop != "certified":
        summary["stopped_by"] = outcome.stop
    if outcome.stop not in ("certified", "empty"):
        summary["duality_gap"] = outcome.gap
    return summary

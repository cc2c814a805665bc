"""NNN decoding of a window, and its parameters ("Non-negative Elastic Net Decoding for Information Retrieval")."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.rescorers.nnn.active_set import Solution, solve
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.rescorers.nnn.path import select
from es_ttc.vectors.tokens import Float32, Float64

DEFAULT_L1 = 0.2
DEFAULT_L2 = 0.1


class NnnParams(Params):
    """Parameters of NNN rescoring."""

    GRID: ClassVar[Mapping[str, Sequence[float]]] = {
        "l1": (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3),
        "l2": (0.0, 0.01, 0.05, 0.1, 0.3, 1.0, 3.0),
    }

    l1: float = Field(
        DEFAULT_L1,
        ge=0,
        le=1,
        description="L1 penalty: a document is selected only if its cosine with the query's residual exceeds this. "
        "Greater values select fewer documents. The paper's L2-Fix has 0.",
    )
    l2: float = Field(
        DEFAULT_L2,
        ge=0,
        le=1000,
        description="L2 penalty: distributes weight among similar documents. Greater values select more of them "
        "together, in an order closer to that of `dense`. The paper's L1-Fix has 0.",
    )
    documents: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Number of documents to select, in place of `l1`: `l1` decreases until this many are selected, or "
        "until it is 0.",
    )

    @model_validator(mode="after")
    def _one_stopping_rule(self) -> Self:
        if self.documents is not None and self.l1 != DEFAULT_L1:
            raise ValueError("[documents] chooses l1 by itself: set one of the two")
        return self


_MAX_REDUNDANT = 3
_MAX_SIMILARITIES = 20
_LEAST_COEFFICIENT = 1e-30  # smaller coefficients count as zero: float32 has no values for the scores below them


class NnnRescorer:
    """Select the documents that together reconstruct the query, without redundant ones.

    The query's pooled vector is approximated by a sum of document vectors of the window with coefficients that are not
    negative and mostly zero (equation 1). A document's coefficient is its score; a redundant document has none.
    Documents with a zero coefficient follow in first-pass order, with scores between 0 and the smallest coefficient. Of
    several query texts the mean of their vectors is approximated.
    """

    name: ClassVar[str] = "nnn"
    Params: ClassVar[type[Params]] = NnnParams
    wants: ClassVar[frozenset[Feature]] = frozenset()
    similarity: ClassVar[bool] = False

    def needs(self, params: NnnParams) -> frozenset[Feature]:  # noqa: ARG002
        """The pooled vectors."""
        return frozenset({Feature.POOLED})

    def score(self, query: Query, window: Window, params: NnnParams) -> Float32:
        """Return the scores, ``(k,)``, all positive."""
        return scores(_solution(query, window, params).x)

    def detail(self, query: Query, window: Window, params: NnnParams) -> list[dict[str, Any]]:
        """Return each document's part in the reconstruction of the query, which depends on the whole window.

        ``coefficient``; ``relevance``, its inner product with the query (a cosine, for one text); ``unexplained``, its
        inner product with the residual; ``residual_norm``; ``l1`` and ``l2`` as used; ``certified``, whether the
        solution reached its tolerance. For a document above l1 without a coefficient, ``redundant_with``: the selected
        documents that explain most of its relevance, with their ``contribution``; relevance is unexplained plus all
        contributions. For such a document and for a selected one, ``similarities``: its cosines with the (other)
        selected documents, those of the greatest coefficients first, at most 20.
        """
        assert window.pooled is not None  # noqa: S101 - promised by needs
        return details(_solution(query, window, params), window.pooled, mean_of(query), window.ids)


def scores(x: Float64) -> Float32:
    """Return coefficients as scores: all positive, those of zero coefficients below all others and decreasing."""
    selected = x >= _LEAST_COEFFICIENT
    rest = int(np.count_nonzero(~selected))
    ceiling = float(np.min(x, where=selected, initial=np.inf)) if rest < len(x) else 1.0
    result = x.astype(np.float32)
    result[~selected] = ceiling * (np.arange(rest, 0, -1) / (rest + 1))
    return result


def details(solution: Solution, rows: Float32, query: Float64, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return each document's part in a solution; see :meth:`NnnRescorer.detail`."""
    vectors = rows.astype(np.float64)
    relevance = vectors @ query
    unexplained = vectors @ solution.residual
    similarities = vectors @ vectors[solution.support].T
    contributions = similarities * solution.coefficients
    greatest = np.argsort(-solution.coefficients, kind="stable")[:_MAX_SIMILARITIES].tolist()
    common = {
        "residual_norm": float(np.linalg.norm(solution.residual)),
        "l1": solution.penalty.l1,
        "l2": solution.penalty.l2,
        "certified": solution.converged,
    }
    shown = []
    for place, coefficient in enumerate(solution.x.tolist()):
        detail = {
            "coefficient": coefficient,
            "relevance": float(relevance[place]),
            "unexplained": float(unexplained[place]),
            **common,
        }
        redundant = coefficient == 0 and relevance[place] > solution.penalty.l1
        if coefficient > 0 or redundant:
            detail["similarities"] = [
                {"id": ids[solution.support[one]], "similarity": round(float(similarities[place, one]), 6)}
                for one in greatest
                if solution.support[one] != place
            ]
        if redundant:
            detail["redundant_with"] = _largest(contributions[place], solution, ids)
        shown.append(detail)
    return shown


def mean_of(query: Query) -> Float64:
    """Return the mean of a query's vectors, ``(d,)``."""
    mean: Float64 = query.vectors.mean(axis=0, dtype=np.float64)
    return mean


def _solution(query: Query, window: Window, params: NnnParams) -> Solution:
    assert window.pooled is not None  # noqa: S101 - promised by needs
    dictionary = Dictionary.of(window.pooled)
    if params.documents is not None:
        return select(dictionary, mean_of(query), params.documents, l2=params.l2)
    return solve(dictionary, mean_of(query), Penalty(params.l1, params.l2))


def _largest(contributions: Float64, solution: Solution, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the selected documents that explain most of a document's relevance."""
    order = np.argsort(-contributions, kind="stable")[:_MAX_REDUNDANT]
    return [
        {"id": ids[solution.support[one]], "contribution": float(contributions[one])}
        for one in order
        if contributions[one] > 0
    ]

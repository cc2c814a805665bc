"""The contract of a retriever: a declaration, and one coroutine that returns the best documents for a query.

A retriever searches by a :class:`Search`. The gateway provides one that queries the engine with the caller's
credentials, with the caller's filter on every call; an evaluation in memory provides one over arrays. A retriever
cannot distinguish them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Feature, Params, Query, Window
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")

Documents = NDArray[np.intp]
"""``(m,)`` numbers of documents: a search numbers documents as it finds them, each once, from 0."""


class Vectors(StrEnum):
    """The vectors of a kNN search; of several vectors of one document the nearest counts."""

    POOLED = "pooled"
    SPANS = "spans"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class NearestDocuments:
    """The documents nearest to one vector.

    Attributes:
        documents: ``(m,)`` their numbers, nearest first; fewer than requested if no more match the filter.
        cosines: ``(m,)`` float32, the cosines of their nearest vectors with the query vector, non-increasing. They are
            as exact as the engine's scores: compute exact values from a :class:`Window`.
        complete: Whether there are no others if there are fewer than requested. False if a search stopped looking for
            them: they are then farther away than these.
    """

    documents: Documents
    cosines: Float32
    complete: bool = True


@dataclass(frozen=True, slots=True)
class KnownDocuments:
    """Documents with the requested features.

    Attributes:
        documents: ``(k,)`` those that have all needed features, in the order of the request; a document that changed
            meanwhile has none.
        window: Their features, in this order; ``window.first_pass`` is 0.
    """

    documents: Documents
    window: Window


class Search(Protocol):
    """A search client: every document that it finds matches the caller's filter and rights.

    Attributes:
        seconds_left: Remaining time for retrieval, 0 or more. A retriever that can end early with a valid answer does
            so in time; another one is cancelled at the end.
        details: Whether details of each document are requested; otherwise they need not be computed, and the ids of
            windows are meaningless.
    """

    @property
    def details(self) -> bool:
        """Whether details of each document are requested."""

    @property
    def seconds_left(self) -> float:
        """The remaining time for retrieval."""

    async def nearest(
        self,
        vectors: Float32,
        k: int,
        *,
        among: Vectors = Vectors.POOLED,
        num_candidates: int | None = None,
        exact: bool = False,
        features: frozenset[Feature] = frozenset(),
    ) -> list[NearestDocuments]:
        """Find the documents nearest to each of some vectors by cosine, in one round trip.

        Args:
            vectors: ``(b, d)`` finite, none zero, of any length: only the direction counts.
            k: Number of documents for each vector; 1 or more.
            among: The vectors that are searched.
            num_candidates: Minimum number of vectors that an approximate search considers on each shard; the caller's
                own value or the engine's default if that is greater. Never fewer than k.
            exact: Compare every vector, without the approximate index.
            features: Stored features to return with the documents if the corpus can, so that :meth:`window` needs no
                round trip for them. For few documents: all features stored with them are read.

        Raises:
            MissingFeature: The corpus has no such vectors.
            EngineError: The engine returned an error.
        """

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents that this search has found.

        Args:
            documents: Their numbers.
            needs: Features that a document must have; others are left out.
            wants: Features that are returned if every document has them.

        Raises:
            EngineError: The engine returned an error.
        """

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Return the result of a pure function, computed in a thread if other requests use the event loop.

        For computations of more than about a millisecond: scoring a window, solving.
        """


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The result of a retriever.

    Attributes:
        documents: ``(m,)`` best first, each once; at most k.
        scores: ``(m,)`` float32, non-increasing: cosines if the retriever's ``similarity`` is True, else not negative.
        details: Details of each document (JSON-ready); empty if there are none or none are requested.
        summary: Values for the summary (JSON-ready), whether or not detail is requested: numbers of searches,
            certificates.
    """

    documents: Documents
    scores: Float32
    details: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)


P = TypeVar("P", bound=Params, contravariant=True)


@runtime_checkable
class Retriever(Protocol[P]):
    """The contract of a retriever; see ``es_ttc/retrievers/dense.py`` for the smallest one.

    Attributes:
        name: The ``method`` of a request. Lower case.
        Params: The model that validates a request's ``params``.
        similarity: True if scores are cosines in [-1, 1]; the response then contains (1 + score) / 2, as the engines do
            for cosine similarity. Otherwise scores must be >= 0.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    similarity: ClassVar[bool]

    def needs(self, params: P) -> frozenset[Feature]:
        """Return the features of documents that it reads, and ``QUERY_TOKENS`` if it reads those of the query."""

    def searches(self, params: P) -> frozenset[Vectors]:
        """Return the vectors that it searches."""

    async def retrieve(self, query: Query, search: Search, k: int, params: P) -> Retrieved:
        """Return the k best documents of the corpus, or fewer if there are no more.

        Args:
            query: The encoded query; none of its vectors is zero.
            search: The search client.
            k: Number of documents, 1 or more.
            params: Validated parameters.
        """


def together(found: Sequence[NearestDocuments]) -> NearestDocuments:
    """Return the documents of several searches as one list: each once, with its greatest cosine, nearest first.

    Equal cosines keep the order of the searches: numbers depend on which search was answered first.
    """
    if not found:
        return NearestDocuments(np.empty(0, np.intp), np.empty(0, np.float32))
    numbers = np.concatenate([part.documents for part in found])
    cosines = np.concatenate([part.cosines for part in found])
    order = np.argsort(-cosines, kind="stable")
    order = order[np.sort(np.unique(numbers[order], return_index=True)[1])]
    return NearestDocuments(numbers[order], cosines[order], complete=all(part.complete for part in found))


def best(documents: Documents, scores: Float32, k: int) -> tuple[Documents, Float32]:
    """Return the k documents with the greatest scores, best first; equal ones keep their order."""
    order = np.argsort(-scores, kind="stable")[:k]
    return documents[order], scores[order]

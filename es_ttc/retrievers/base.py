"""What a retriever is: a declaration and one coroutine from a query and the means to search to the best documents.

The means to search are a :class:`Search`: the gateway gives one that asks the engine in the caller's name, with the
caller's filter on every call; an evaluation in memory gives one over arrays. A retriever knows neither.
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
    """The vectors that a kNN search goes through; of several vectors of one document the nearest counts."""

    POOLED = "pooled"
    SPANS = "spans"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class NearestDocuments:
    """The documents nearest to one vector.

    Attributes:
        documents: ``(m,)`` their numbers, nearest first; fewer than were asked for where no more match the filter.
        cosines: ``(m,)`` float32, those of their nearest vectors with the one that was asked for, non-increasing. As
            exact as the engine's own scores: compute what must be exact from a :class:`Window`.
        complete: Whether there are no others where there are fewer than were asked for. False where a search has given
            up looking for them: they are then farther away than these.
    """

    documents: Documents
    cosines: Float32
    complete: bool = True


@dataclass(frozen=True, slots=True)
class KnownDocuments:
    """Documents with the features that were asked for.

    Attributes:
        documents: ``(k,)`` those that have all that is needed, in the order asked; one that changed meanwhile has none.
        window: Their features, in this order; ``window.first_pass`` is 0.
    """

    documents: Documents
    window: Window


class Search(Protocol):
    """The means to search: every document that it ever finds matches the caller's filter and rights.

    Attributes:
        seconds_left: What is left of the time for retrieving, 0 or more. A retriever that can end early with an honest
            answer does so before it is over; one that cannot is cut off then.
        details: Whether what can be shown about each document is asked for; else it need not be computed, and the ids
            of windows mean nothing.
    """

    @property
    def details(self) -> bool:
        """Whether what can be shown about each document is asked for."""
        ...

    @property
    def seconds_left(self) -> float:
        """What is left of the time for retrieving."""
        ...

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
            k: Documents wanted for each of them; 1 or more.
            among: The vectors that are searched.
            num_candidates: Vectors that an approximate search considers on each shard at least; the caller's own
                choice, or the engine's default, where that is more. Never fewer than k.
            exact: Compare every vector in place of asking the approximate index.
            features: Stored features of the documents that come along where the corpus can give them, so that
                :meth:`window` needs no round trip for them. For few documents: whatever is stored beside them is read.

        Raises:
            MissingFeature: The corpus has no such vectors.
            EngineError: The engine failed.
        """
        ...

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents that this search has found.

        Args:
            documents: Their numbers.
            needs: Features that a document must have, or it is left out.
            wants: Features that are given where every document has them.

        Raises:
            EngineError: The engine failed.
        """
        ...

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Return what a pure function returns; where others wait for the same event loop it is called off it.

        For whatever takes more than about a millisecond: scoring a window, solving.
        """
        ...


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What a retriever found.

    Attributes:
        documents: ``(m,)`` best first, each once; m is at most the k that was asked for.
        scores: ``(m,)`` float32, non-increasing: cosines where the retriever's ``similarity`` says so, else not
            negative.
        details: What can be shown about each document (JSON-ready); empty where nothing, or where nobody asks.
        summary: What is to be said about the retrieval as a whole (JSON-ready), whether or not detail is asked for:
            rounds, certificates.
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
        similarity: True where scores are cosines in [-1, 1]; they are then shown as (1 + score) / 2, the engines' own
            convention for cosine similarity. Otherwise scores must be >= 0.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Params]]
    similarity: ClassVar[bool]

    def needs(self, params: P) -> frozenset[Feature]:
        """Return the features of documents that it reads, and ``QUERY_TOKENS`` where it reads those of the query."""
        ...

    def searches(self, params: P) -> frozenset[Vectors]:
        """Return the vectors that it searches."""
        ...

    async def retrieve(self, query: Query, search: Search, k: int, params: P) -> Retrieved:
        """Return the k best documents of the corpus, or fewer where there are no more.

        Args:
            query: The encoded query; none of its vectors is zero.
            search: The means to search.
            k: Documents wanted, 1 or more.
            params: Validated parameters.
        """
        ...


def together(found: Sequence[NearestDocuments]) -> NearestDocuments:
    """Return the documents of several searches as one: each once, with the greatest of its cosines, nearest first."""
    if not found:
        return NearestDocuments(np.empty(0, np.intp), np.empty(0, np.float32))
    numbers = np.concatenate([part.documents for part in found])
    documents, places = np.unique(numbers, return_inverse=True)
    cosines = np.full(len(documents), -np.inf, np.float32)
    np.maximum.at(cosines, places, np.concatenate([part.cosines for part in found]))
    return NearestDocuments(*best(documents, cosines, len(documents)), complete=all(part.complete for part in found))


def best(documents: Documents, scores: Float32, k: int) -> tuple[Documents, Float32]:
    """Return the k documents of the greatest scores, best first; equal ones keep their order."""
    order = np.argsort(-scores, kind="stable")[:k]
    return documents[order], scores[order]

"""A search over arrays: exact, for evaluations in memory, tests and other vectors."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import MissingFeature
from es_ttc.rescorers.base import Feature, Window
from es_ttc.retrievers.base import Documents, KnownDocuments, NearestDocuments, Vectors, best
from es_ttc.vectors.tokens import Float32

A = ParamSpec("A")
T = TypeVar("T")

Windows = Callable[[Documents, frozenset[Feature]], Window]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Vectors of a corpus of n documents, document by document."""

    rows: Float32  # (m, d) float32, of unit length or zero
    owners: Documents  # (m,) the number of each row's document, ascending

    @classmethod
    def of(cls, rows: Float32) -> Self:
        """Return a matrix of one vector for each document, ``(n, d)``; a zero row is a document without one."""
        present = np.flatnonzero(rows.any(axis=1))
        return cls(rows if len(present) == len(rows) else rows[present], present)


class MemorySearch:
    """Finds documents by comparing every vector; documents are numbered in the order of the corpus."""

    def __init__(
        self,
        matrices: Mapping[Vectors, Matrix],
        windows: Windows,
        *,
        eligible: NDArray[np.bool_] | None = None,  # (n,) the documents that match the caller's filter; None for all
        seconds: float = math.inf,
        details: bool = True,  # whether details of each document are requested
    ) -> None:
        self.details = details
        self._matrices = matrices
        self._windows = windows
        self._eligible = eligible
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """The remaining time for retrieval."""
        return max(0.0, self._end - time.monotonic())

    async def nearest(
        self,
        vectors: Float32,
        k: int,
        *,
        among: Vectors = Vectors.POOLED,
        num_candidates: int | None = None,  # noqa: ARG002 - every vector is a candidate
        exact: bool = False,  # noqa: ARG002 - it always is
        features: frozenset[Feature] = frozenset(),  # noqa: ARG002 - all are at hand
    ) -> list[NearestDocuments]:
        """Find the documents nearest to each of some vectors; see :class:`es_ttc.retrievers.base.Search`."""
        if among not in self._matrices:
            raise MissingFeature(f"the corpus has no vectors of [{among}]: give them to the search")
        matrix = self._matrices[among]
        if self._eligible is not None:
            kept = self._eligible[matrix.owners]
            matrix = Matrix(matrix.rows[kept], matrix.owners[kept])
        return [_nearest(matrix, vector / np.linalg.norm(vector), k) for vector in vectors]

    async def window(
        self, documents: Documents, needs: frozenset[Feature], wants: frozenset[Feature] = frozenset()
    ) -> KnownDocuments:
        """Return stored features of documents; all documents have them."""
        return KnownDocuments(documents, self._windows(documents, needs | wants))

    async def compute(self, function: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        """Call a function; nothing else uses the event loop here."""
        return function(*args, **kwargs)


def _nearest(matrix: Matrix, vector: Float32, k: int) -> NearestDocuments:
    cosines: Float32 = matrix.rows @ vector.astype(np.float32)
    documents = matrix.owners
    if len(cosines):
        starts = np.flatnonzero(np.diff(documents, prepend=-1))
        documents, cosines = documents[starts], np.maximum.reduceat(cosines, starts)
    if k < len(cosines):
        near = np.flatnonzero(cosines >= np.partition(cosines, -k)[-k])
        documents, cosines = documents[near], cosines[near]
    return NearestDocuments(*best(documents, cosines, k))

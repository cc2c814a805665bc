"""The neighbour graph, and the nearest documents of every document: by blocked matrix products, or by usearch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import ConfigurationError
from es_ttc.vectors.tokens import Float32

NO_NEIGHBOUR = -1  # fills the end of a row with fewer neighbours than the maximum degree

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NeighbourGraph:
    """Each document's neighbours, nearest first."""

    table: Numbers  # (n, R) int32, numbers of documents; `ABSENT` after a row's last neighbour

    def __len__(self) -> int:
        return len(self.table)

    def of(self, document: int) -> Numbers:
        """Return one document's neighbours, ``(m,)``, nearest first."""
        row: Numbers = self.table[document]
        neighbours: Numbers = row[row != NO_NEIGHBOUR]
        return neighbours

    @property
    def degrees(self) -> NDArray[np.intp]:
        """Return the number of each document's neighbours, ``(n,)``."""
        degrees: NDArray[np.intp] = np.sum(self.table != NO_NEIGHBOUR, axis=1, dtype=np.intp)
        return degrees


_BLOCK_BYTES = 64 * 2**20  # memory of one block of cosines


def exact(vectors: Float32, k: int, *, rows: Numbers | None = None) -> tuple[Numbers, Float32]:
    """Return the k nearest other documents of each document, or of some rows, by cosine of ``(n, d)`` unit rows.

    Returns:
        Their numbers ``(m, k')`` and cosines ``(m, k')``, nearest first; of equal cosines the lower number first.
    """
    requested = np.arange(len(vectors), dtype=np.int32) if rows is None else rows
    k = max(0, min(k, len(vectors) - 1))
    numbers = np.empty((len(requested), k), np.int32)
    cosines = np.empty((len(requested), k), np.float32)
    if k == 0:
        return numbers, cosines
    block = max(1, _BLOCK_BYTES // (4 * len(vectors)))
    for start in range(0, len(requested), block):
        own = requested[start : start + block]
        similarity = vectors[own] @ vectors.T
        similarity[np.arange(len(own)), own] = -np.inf
        part = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        part.sort(axis=1)  # a stable sort by cosine keeps equal ones in the order of their numbers
        found = np.take_along_axis(similarity, part, axis=1)
        order = np.argsort(-found, axis=1, kind="stable")
        numbers[start : start + block] = np.take_along_axis(part, order, axis=1)
        cosines[start : start + block] = np.take_along_axis(found, order, axis=1)
    return numbers, cosines


_EXPANSION = 128  # size of the search's candidate list; greater is slower and more exact


class Hnsw:
    """An HNSW index over ``(n, d)`` unit rows, for about the k nearest documents of each."""

    def __init__(self, vectors: Float32, k: int) -> None:
        try:
            from usearch.index import Index
        except ImportError as error:
            raise ConfigurationError(
                "a graph of this many documents needs the package usearch: pip install 'es-ttc[graph]'"
            ) from error
        self._vectors = vectors
        self._k = max(0, min(k, len(vectors) - 1))
        self._index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32", expansion_search=max(_EXPANSION, k + 1))
        self._index.add(np.arange(len(vectors), dtype=np.uint64), vectors)

    def nearest(self, rows: Numbers | None = None) -> tuple[Numbers, Float32]:
        """Return about the k nearest other documents of each document, as :func:`exact` does."""
        from usearch.index import BatchMatches

        requested = np.arange(len(self._vectors), dtype=np.int32) if rows is None else rows
        k = self._k
        found = self._index.search(self._vectors[requested].reshape(len(requested), -1), k + 1)
        if not isinstance(found, BatchMatches):  # what it returns for a matrix
            raise TypeError("usearch answered a matrix of queries with something else than a batch")
        keys = np.asarray(found.keys).astype(np.int64)
        cosines = 1 - np.asarray(found.distances, dtype=np.float32)
        absent = np.arange(keys.shape[1])[None, :] >= np.asarray(found.counts)[:, None]
        own = keys == requested[:, None]
        cosines[absent | own] = -np.inf  # the document itself and missing results are moved to the end
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        cosines = np.take_along_axis(cosines, order, axis=1)
        numbers = np.where(np.isneginf(cosines), NO_NEIGHBOUR, np.take_along_axis(keys, order, axis=1))
        return numbers.astype(np.int32), np.maximum(cosines, -1)

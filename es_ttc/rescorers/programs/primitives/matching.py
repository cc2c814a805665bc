"""Similarities of queries with documents that are many vectors."""

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

LEAST = -1.0  # the score of a document without any chunk: the least cosine there is


def max_sim(similarities: Float32, starts: NDArray[np.intp]) -> Float32:
    """Return the greatest similarity of any of a document's chunks (B.2; MaxSim of Khattab and Zaharia, SIGIR 2020).

    Document i owns the ``(q, m)`` similarities ``starts[i]`` to ``starts[i + 1]`` (exclusive); without any it scores
    :data:`LEAST`.
    """
    owned = np.diff(starts) > 0
    result: Float32 = np.full((len(similarities), len(owned)), LEAST, np.float32)
    if owned.any():
        result[:, owned] = np.maximum.reduceat(similarities, starts[:-1][owned], axis=1)
    return result


def top_mean_sim(similarities: Float32, starts: NDArray[np.intp]) -> Float32:
    """Return the mean similarity of a document's chunks above the query's median (B.4); without one, its greatest."""
    result = max_sim(similarities, starts)
    owned = np.diff(starts) > 0
    if not owned.any():
        return result
    above = similarities > np.median(similarities, axis=1, keepdims=True)
    firsts = starts[:-1][owned]
    counts = np.add.reduceat(above, firsts, axis=1, dtype=np.int32)
    sums = np.add.reduceat(np.where(above, similarities, np.float32(0)), firsts, axis=1)
    kept = result[:, owned]
    result[:, owned] = np.divide(sums, counts, out=kept.copy(), where=counts > 0)
    return result


def best_chunk(similarities: Float32, starts: NDArray[np.intp], documents: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for each query the place of the most similar chunk of its one document, ``(q,)``; -1 where it has none."""
    places = np.full(len(documents), -1, np.intp)
    for query, document in enumerate(documents):
        start, end = starts[document], starts[document + 1]
        if end > start:
            places[query] = start + int(np.argmax(similarities[query, start:end]))
    return places

"""RobustPrune: keep of a document's candidates those that no nearer neighbour already leads to.

Subramanya et al., DiskANN: Fast Accurate Billion-point Nearest Neighbor Search on a Single Node (NeurIPS 2019),
algorithm 2.
"""

import numpy as np

from es_ttc.reranking.graph.nearest import NO_NEIGHBOUR, Numbers
from es_ttc.vectors.tokens import Float32

_BLOCK_BYTES = 128 * 2**20  # memory of the candidates' vectors of one block of documents


def robust_prune(vectors: Float32, documents: Numbers, candidates: Numbers, degree: int, alpha: float) -> Numbers:
    """Choose the neighbours of m documents among ``(m, k)`` candidates: ``(m, degree)``, nearest first.

    The nearest candidate is taken, and every other one that is alpha times nearer to it than to the document is
    dropped. This repeats with the remaining candidates until R are taken. The document itself and :data:`ABSENT` are
    skipped; a number occurs at most once in a row.
    """
    chosen = np.full((len(documents), degree), NO_NEIGHBOUR, np.int32)
    width = max(1, candidates.shape[1])
    block = max(1, _BLOCK_BYTES // (4 * width * max(vectors.shape[1], width)))
    for start in range(0, len(documents), block):
        rows = slice(start, start + block)
        chosen[rows] = _pruned(vectors, documents[rows], candidates[rows], degree, alpha)
    return chosen


def _pruned(vectors: Float32, documents: Numbers, candidates: Numbers, degree: int, alpha: float) -> Numbers:
    alive = (candidates != NO_NEIGHBOUR) & (candidates != documents[:, None])
    known = vectors[np.where(alive, candidates, 0)]  # (m, k, d)
    far = np.where(alive, _distance(np.einsum("mkd,md->mk", known, vectors[documents])), np.inf)
    order = np.argsort(far, axis=1, kind="stable")
    candidates, far = np.take_along_axis(candidates, order, axis=1), np.take_along_axis(far, order, axis=1)
    alive = np.isfinite(far)
    known = np.take_along_axis(known, order[:, :, None], axis=1)
    between = _distance(known @ known.transpose(0, 2, 1))  # (m, k, k)
    chosen = np.full((len(documents), degree), NO_NEIGHBOUR, np.int32)
    every = np.arange(len(documents))
    for turn in range(degree):
        any_left = alive.any(axis=1)
        if not any_left.any():
            break
        nearest = np.argmax(alive, axis=1)
        chosen[any_left, turn] = candidates[every, nearest][any_left]
        alive &= alpha * between[every, nearest] > far
        alive[every, nearest] = False
    return chosen


def _distance(cosines: Float32) -> Float32:
    """Return the Euclidean distance of unit vectors from their cosines."""
    distance: Float32 = np.sqrt(np.maximum(0, 2 - 2 * cosines))
    return distance

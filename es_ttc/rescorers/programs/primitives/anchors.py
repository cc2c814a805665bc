"""Choose the documents that expand a query, from one query's ranking or scores; all return positions of documents."""

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.programs.primitives.fusion import share_of
from es_ttc.rescorers.programs.primitives.vectors import normalise
from es_ttc.vectors.tokens import Float32

AnchorPositions = NDArray[np.intp]


def top(order: AnchorPositions, share: float) -> AnchorPositions:
    """Return the best share of a ranking, best first, rounded up."""
    return order[: share_of(len(order), share)]


def bottom(order: AnchorPositions, share: float) -> AnchorPositions:
    """Return the worst share of a ranking, best of them first, rounded down; the last document at least."""
    return order[min(len(order) - 1, share_of(len(order), 1 - share)) :]


def diverse(order: AnchorPositions, documents: Float32) -> int:
    """Return the document of the top half least similar to the best one (B.7); the best one where it is alone."""
    candidates = top(order, 1 / 2)
    return int(candidates[np.argmin(documents[candidates] @ documents[order[0]])])


def consensus(order: AnchorPositions, documents: Float32) -> tuple[AnchorPositions, AnchorPositions]:
    """Part the top quarter by mutual similarity (B.8): the core, and its rest with the bottom half (negatives)."""
    quarter = top(order, 1 / 4)
    mutual = _mean_similarity(documents[quarter])
    core = mutual >= np.median(mutual)
    return quarter[core], np.concatenate((quarter[~core], bottom(order, 1 / 2)))


def momentum(order: AnchorPositions, before: NDArray[np.int32], after: NDArray[np.int32]) -> tuple[int, int]:
    """Return the top-half document that rose most and the bottom-half document that fell most (B.10)."""
    risen = before - after
    upper, lower = top(order, 1 / 2), bottom(order, 1 / 2)
    return int(upper[np.argmax(risen[upper])]), int(lower[np.argmin(risen[lower])])


def central(order: AnchorPositions, documents: Float32) -> int:
    """Return the document of the top quarter most similar to the others (degree centrality, B.11)."""
    quarter = top(order, 1 / 4)
    return int(quarter[np.argmax(_mean_similarity(documents[quarter]))])


def hardest_negative(order: AnchorPositions, documents: Float32) -> int:
    """Return the bottom-half document nearest to the top quarter's centroid (B.11)."""
    lower = bottom(order, 1 / 2)
    centroid = normalise(documents[top(order, 1 / 4)].mean(axis=0, keepdims=True))[0]
    return int(lower[np.argmax(documents[lower] @ centroid)])


def _mean_similarity(documents: Float32) -> Float32:
    """Return each document's mean cosine with the others, ``(n,)``; 0 for one alone."""
    others = documents.sum(axis=0, dtype=np.float64).astype(np.float32) - documents
    mean: Float32 = np.einsum("ij,ij->i", documents, others) / np.float32(max(1, len(documents) - 1))
    return np.round(mean, 6)

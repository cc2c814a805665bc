"""Queries moved by the documents that they found: pseudo-relevance feedback on vectors."""

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.programs.primitives.fusion import order_of
from es_ttc.rescorers.programs.primitives.vectors import normalise
from es_ttc.vectors.tokens import Float32

Members = NDArray[np.bool_]


def centroids(documents: Float32, members: Members) -> Float32:
    """Return the mean vector of each query's ``(q, n)`` members, ``(q, d)``; zero if there are none."""
    counts = np.maximum(1, members.sum(axis=1, dtype=np.int64))[:, None]
    mean: Float32 = (members.astype(np.float32) @ documents) / counts.astype(np.float32)
    return mean


def rocchio(queries: Float32, positive: Float32, negative: Float32) -> Float32:
    """Return ``normalise(q + d_pos - d_neg)`` (B.6; Rocchio 1971 with weights of 1)."""
    return normalise(queries + positive - negative)


def around_median(scores: Float32) -> tuple[Members, Members]:
    """Return which documents score above and which below the query's median (B.6), each ``(q, n)``."""
    if scores.shape[1] == 0:
        return np.zeros(scores.shape, np.bool_), np.zeros(scores.shape, np.bool_)
    median = np.median(scores, axis=1, keepdims=True)
    return scores > median, scores < median


def residual(queries: Float32, centroid: Float32) -> Float32:
    """Return the part of each query that is orthogonal to a centroid, ``q - proj(q, c)`` (B.6); not unit."""
    axis = normalise(centroid)
    along: Float32 = np.einsum("ij,ij->i", queries, axis)[:, None]
    return queries - along * axis


def contrast(positive: Float32, negative: Float32) -> Float32:
    """Return ``normalise(q_pos - q_neg)`` (B.9); zero where both are equal."""
    return normalise(positive - negative)


def top_centroid(documents: Float32, scores: Float32, depth: int, temperature: float | None = None) -> Float32:
    """Return the centroid of each query's best documents, ``(q, d)``; not unit.

    Weights are ``softmax(score / temperature)`` (appendix D), equal for None (VPRF, Li et al. 2023).
    """
    best = order_of(scores)[:, :depth]
    if best.shape[1] == 0:
        return np.zeros((len(scores), documents.shape[1]), np.float32)
    weights = np.full(best.shape, 1 / best.shape[1], np.float32)
    if temperature is not None:
        logits = np.take_along_axis(scores, best, axis=1).astype(np.float64) / temperature
        weights = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float32)
        weights /= weights.sum(axis=1, keepdims=True)
    centroid: Float32 = np.einsum("qk,qkd->qd", weights, documents[best])
    return centroid


def interpolate(queries: Float32, centroid: Float32, weight: float) -> Float32:
    """Return ``normalise((1 - weight) q + weight c)``: the vector PRF update of appendix D."""
    return normalise((1 - weight) * queries + weight * centroid)

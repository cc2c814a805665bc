"""Z-scores, along documents for each query or along queries for each document."""

import numpy as np

from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.vectors.tokens import Float32

NO_DEVIATION = 1e-6  # standard deviations up to this one are rounding: such a row or column is all zero


def along_documents(scores: Float32) -> Float32:
    """Z-score every query's row of ``(q, n)`` scores: the difference from its mean, in standard deviations."""
    if scores.shape[1] == 0:
        return scores
    mean = scores.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    deviation = scores.std(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return standardised(scores, mean, deviation)


def along_queries(scores: Float32, documents: Float32, sample: Moments) -> Float32:
    """Z-score documents' ``(q, n)`` cosines by a stored sample of queries, or by the batch as in the paper (B.1)."""
    mean, deviation = sample.similarities(documents)
    return standardised(scores, mean, deviation)


def standardised(scores: Float32, mean: Float32, deviation: Float32) -> Float32:
    """Return ``(scores - mean) / deviation``, and 0 if there is no deviation."""
    some = np.broadcast_to(deviation > NO_DEVIATION, scores.shape)
    result: Float32 = np.divide(scores - mean, deviation, out=np.zeros(scores.shape, np.float32), where=some)
    return result

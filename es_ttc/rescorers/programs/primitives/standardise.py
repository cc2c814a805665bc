"""Z-scores, along documents for each query or along queries for each document."""

import numpy as np

from es_ttc.rescorers.programs.primitives.moments import Moments
from es_ttc.vectors.tokens import Float32

NO_DEVIATION = 1e-6
"""Standard deviations up to this one are rounding: such a row or column is all zero."""


def along_documents(scores: Float32) -> Float32:
    """Z-score every query's row: the difference from that query's mean, in standard deviations.

    Args:
        scores: ``(q, n)``.
    """
    if scores.shape[1] == 0:
        return scores
    mean = scores.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    deviation = scores.std(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return standardised(scores, mean, deviation)


def along_queries(scores: Float32, documents: Float32, sample: Moments) -> Float32:
    """Z-score every document's column: the difference from that document's mean (B.1).

    Args:
        scores: ``(q, n)`` cosines of queries and documents.
        documents: ``(n, d)``.
        sample: The queries whose mean and deviation are taken: the batch's own, as in the paper, or a stored sample,
            with which one query alone gets the score that it would get in any batch.
    """
    mean, deviation = sample.similarities(documents)
    return standardised(scores, mean, deviation)


def standardised(scores: Float32, mean: Float32, deviation: Float32) -> Float32:
    """Return ``(scores - mean) / deviation``, and 0 if there is no deviation."""
    some = np.broadcast_to(deviation > NO_DEVIATION, scores.shape)
    result: Float32 = np.divide(scores - mean, deviation, out=np.zeros(scores.shape, np.float32), where=some)
    return result

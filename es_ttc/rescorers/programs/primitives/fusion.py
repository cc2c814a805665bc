"""Ranks, and rankings fused by reciprocal rank."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

_DECIMALS = 6  # scores alike to these tie: a product's rounding must not part equal ones


def ranks(scores: Float32) -> NDArray[np.int32]:
    """Return each document's rank for each query, ``(q, n)``: 1 for the greatest score, a NaN last.

    Equal scores share the best rank among them (1, 1, 3), so ranks do not depend on the documents' order.
    """
    queries, documents = scores.shape
    if documents == 0:
        return np.zeros((queries, 0), np.int32)
    rounded = np.round(np.where(np.isnan(scores), -np.inf, scores), _DECIMALS)
    order = np.argsort(-rounded, axis=1, kind="stable")
    ordered = np.take_along_axis(rounded, order, axis=1)
    first = np.zeros((queries, documents), np.int32)
    first[:, 1:] = np.where(ordered[:, 1:] != ordered[:, :-1], np.arange(1, documents, dtype=np.int32), 0)
    result = np.empty((queries, documents), np.int32)
    np.put_along_axis(result, order, np.maximum.accumulate(first, axis=1) + 1, axis=1)
    return result


def reciprocal_rank_fusion(channels: Sequence[Float32], k: int = 0) -> Float32:
    """Return ``RRF(d) = sum_i 1 / (k + rank_i(d))`` (B.5), ``(q, n)``; Cormack et al. (2009) have a k of 60."""
    fused: Float32 = np.zeros(channels[0].shape, np.float32)
    for channel in channels:
        fused += np.float32(1) / (k + ranks(channel))
    return fused


def order_of(scores: Float32, ties: Float32 | None = None) -> NDArray[np.intp]:
    """Return the documents of each row, best first; those of equal scores by `ties`, then in their own order."""
    keys = [-np.round(one, _DECIMALS) for one in ((scores,) if ties is None else (ties, scores))]
    order: NDArray[np.intp] = np.lexsort(keys, axis=1)
    return order


def share_of(documents: int, share: float) -> int:
    """Return the number of documents in a share of a ranking, rounded up; at least one if there is one."""
    return min(documents, max(1, int(np.ceil(documents * share))))

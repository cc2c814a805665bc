"""Spectral Retrieval and MaxSim as the papers write them: one vector, one dimension, one position at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

Float64 = NDArray[np.float64]


def sinc_kernel(length: int, scale: float) -> Float64:
    """Section III-B, element by element."""
    centre = (length - 1) / 2
    raw = []
    for t in range(length):
        x = (t - centre) / scale
        raw.append(1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x))
    return np.array(raw) / math.fsum(raw)


def smoothed(tokens: Float64, scale: float) -> Float64:
    """The smoothed matrix before its rows are renormalised, section III-C."""
    length, dims = tokens.shape
    if scale == 1:
        return tokens
    if scale == math.inf:
        return np.tile(tokens.mean(axis=0), (length, 1))
    kernel = sinc_kernel(length, scale)
    return np.stack([np.convolve(tokens[:, j], kernel, "same") for j in range(dims)], axis=1)


def cosines(query: Float64, tokens: Float64, scale: float) -> list[float]:
    """The cosine at each position; a row shorter than 1e-5 counts as a zero vector, scale 1 leaves rows as they are."""
    rows = smoothed(tokens, scale)
    if scale == 1:
        return [float(query @ row) for row in rows]
    return [float(query @ row) / max(float(np.linalg.norm(row)), 1e-5) for row in rows]


def aggregate(values: Sequence[float], how: str, top_m: int, percentile: float) -> float:
    """One number for one scale."""
    if how == "max":
        return max(values)
    if how == "top_mean":
        best = sorted(values, reverse=True)[:top_m]
        return sum(best) / len(best)
    return float(np.percentile(values, percentile))


def pooled(scores: Sequence[float], pool: str, temperature: float, weights: Sequence[float] | None) -> float:
    """One number for all scales; the paper has the maximum alone."""
    if pool == "max":
        best = -math.inf  # 0, as printed in section III-E, is wrong for negative cosines
        for score in scores:
            best = max(best, score)
        return best
    if pool == "softmax":
        weights = [math.exp((score - max(scores)) / temperature) for score in scores]
    weights = weights or [1] * len(scores)
    return math.fsum(weight * score for weight, score in zip(weights, scores, strict=True)) / math.fsum(weights)


def spectral_score(
    query: Float32,
    tokens: Float32,
    scales: Sequence[float],
    *,
    how: str = "max",
    top_m: int = 3,
    percentile: float = 95.0,
    pool: str = "max",
    temperature: float = 0.05,
    weights: Sequence[float] | None = None,
) -> float:
    """Section III-E."""
    scores = []
    for scale in scales:
        values = cosines(query.astype(np.float64), tokens.astype(np.float64), scale)
        scores.append(aggregate(values, how, top_m, percentile))
    return pooled(scores, pool, temperature, weights)


def spectral_of_query_tokens(query_tokens: Float32, tokens: Float32, scales: Sequence[float], **how: Any) -> float:
    """Sections IV-A and XI: the sum over query tokens in place of the one query vector."""
    return sum(spectral_score(token, tokens, scales, **how) for token in query_tokens)


def maxsim(query: Float32, tokens: Float32) -> float:
    """Section III-A."""
    return max(float(query.astype(np.float64) @ token.astype(np.float64)) for token in tokens)


def colbert(query_tokens: Float32, tokens: Float32) -> float:
    """ColBERT's sum over query tokens, section IV-A."""
    return sum(maxsim(token, tokens) for token in query_tokens)

"""Paired bootstrap over queries: intervals of means and of differences, p values, wins and losses.

With fewer than :data:`TRUSTED_QUERIES` queries p is of the exact sign-flip test, because intervals are then too narrow.

Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 13 and 16; for retrieval: Sakai, *Evaluating
evaluation metrics based on the bootstrap* (SIGIR 2006). Queries are drawn with replacement, the same draw for every
method and metric, so a difference is always taken on the same queries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.vectors.tokens import Float64

RESAMPLES = 10_000
SEED = 20_241  # of samples, folds and bootstraps
CONFIDENCE = 0.95
TIE = 0.001  # differences of at most this much are ties (Test-Time Compute for Frozen Embedding Models, section 4)

TRUSTED_QUERIES = 30  # number of queries from which on percentile intervals are trusted

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval at the level of :data:`CONFIDENCE`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method against a baseline, on the same queries.

    Attributes:
        delta: Mean difference, method minus baseline.
        interval: Its percentile interval.
        p: Two-sided p value of "no difference": of the exact sign-flip test with fewer than :data:`TRUSTED_QUERIES`
            queries, so at least 2^-(n-1); else of the bootstrap, twice the share of resamples on the other side of
            zero, so it is below 0.05 just where the 95 % interval leaves out zero.
        wins: Queries that the method answers better by more than :data:`TIE`.
        ties: Queries within :data:`TIE`.
        losses: Queries that it answers worse by more than :data:`TIE`.
    """

    delta: float
    interval: Interval
    p: float
    wins: int
    ties: int
    losses: int

    @property
    def record(self) -> str:
        """Return the numbers of queries won, tied and lost."""
        return f"{self.wins}/{self.ties}/{self.losses}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-ready values."""
        return {
            "delta": self.delta,
            "interval": [self.interval.low, self.interval.high],
            "p": self.p,
            "won_tied_lost": [self.wins, self.ties, self.losses],
        }


def resampled_means(values: Float64, *, resamples: int = RESAMPLES, seed: int = SEED) -> Float64:
    """Return the means of bootstrap resamples.

    Args:
        values: ``(m, n)``: m series over the same n queries.
        resamples: Number of resamples b.
        seed: Seed of the draws; equal seeds give equal draws for equal n.

    Returns:
        ``(b, m)``; row i holds the m means over the i-th draw of n queries.

    Raises:
        ValueError: There is no query.
    """
    n = values.shape[1]
    if n == 0:
        raise ValueError("a bootstrap needs at least one query")
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK_BYTES // (n * values.itemsize))
    means = np.empty((resamples, len(values)))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        means[start : start + rows] = _draw_counts(generator, rows, n) @ values.T / n
    return means


def interval(means: Float64) -> Interval:
    """Return the percentile interval of one series' resampled means, ``(b,)``."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return Interval(float(low), float(high))


def compare(method: Float64, baseline: Float64, method_means: Float64, baseline_means: Float64) -> Comparison:
    """Compare two methods on one metric.

    Args:
        method: ``(n,)`` values of the method, query by query.
        baseline: ``(n,)`` values of the baseline on the same queries.
        method_means: ``(b,)`` the method's column of :func:`resampled_means`.
        baseline_means: ``(b,)`` the baseline's column of the same draws.
    """
    differences = method - baseline
    deltas = method_means - baseline_means
    return Comparison(
        delta=float(np.mean(differences)),
        interval=interval(deltas),
        p=exact_p_value(differences) if len(differences) < TRUSTED_QUERIES else p_value(deltas),
        wins=int(np.sum(differences > TIE)),
        ties=int(np.sum(np.abs(differences) <= TIE)),
        losses=int(np.sum(differences < -TIE)),
    )


def p_value(deltas: Float64) -> float:
    """Return the two-sided p value of ``(b,)`` resampled differences, at least 2 / (b + 1)."""
    other_side = min(np.sum(deltas <= 0), np.sum(deltas >= 0))
    return float(min(1.0, 2 * (other_side + 1) / (len(deltas) + 1)))


def exact_p_value(differences: Float64) -> float:
    """Return the two-sided p value of the exact paired sign-flip (Fisher's permutation) test of a mean of zero.

    It is the share of the 2^n assignments of signs whose sum is at least as far from 0 as the observed one. The sums of
    two halves of the queries are paired by a search in sorted order, so it takes 2^(n/2) sums.

    Args:
        differences: ``(n,)`` differences by query; n below :data:`TRUSTED_QUERIES`.
    """
    half = len(differences) // 2
    first, second = _signed_sums(differences[:half]), np.sort(_signed_sums(differences[half:]))
    least = abs(float(np.sum(differences))) - 1e-9  # sums in another order differ by rounding
    above = len(second) - np.searchsorted(second, least - first)
    below = np.searchsorted(second, -least - first, side="right")
    return float(min(1.0, np.sum(above + below) / 2.0 ** len(differences)))


def _signed_sums(values: Float64) -> Float64:
    """Return the sums of n values under all 2^n assignments of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _draw_counts(generator: np.random.Generator, rows: int, n: int) -> Float64:
    """Return how often each of n queries is drawn in each of ``rows`` resamples, ``(rows, n)``."""
    draws = generator.integers(0, n, size=(rows, n)) + np.arange(rows)[:, None] * n
    return np.bincount(draws.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)

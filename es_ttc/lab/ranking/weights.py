"""Weights of blend's signals, found on judged queries whose signals were scored once.

Every combination of weights on a fine grid is tried: with four signals the multiples of 1/20 that sum to 1, some 1,800.
A grid has no local optima, and its values of each query serve every fold and every signal that is left out: nothing is
searched twice. Equal weights, blend's default, are the first candidate and win ties; of others the one nearest to equal
weights wins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.bootstrap import SEED, Comparison
from es_ttc.lab.evaluation.methods import EvaluatedMethod
from es_ttc.lab.evaluation.rankings import ReportStage, silent
from es_ttc.lab.evaluation.tuning import Tuning, choose, compared, cross_fitted, summary_of
from es_ttc.lab.ranking.graded import Grades, depth_of_metric, grader
from es_ttc.lab.ranking.pools import Pool, Pools
from es_ttc.rescorers.blend.normalise import Normalisation, comparable_columns
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from es_ttc.rescorers.registry import load, parse_params
from es_ttc.vectors.tokens import Float32, Float64

MAX_WEIGHTINGS = 2_000
FINEST = 20  # weights are multiples of 1/20 at the finest
_ALIKE = 1e-9
_MAX_TRIED = 20  # candidates that a file keeps


@dataclass(frozen=True, slots=True)
class SignalGain:
    """What a signal is worth: the metric without it, less the metric with it."""

    signal: SignalName
    equal: Comparison
    refitted: Comparison


@dataclass(frozen=True, slots=True)
class WeightTuning:
    """Weights that were found."""

    tuning: Tuning
    worth: tuple[SignalGain, ...]

    @property
    def clear(self) -> bool:
        """Whether the cross-fitted gain over the default is clear: its interval lies above 0."""
        return self.tuning.against_default.interval.low > 0


def tune_weights(
    pools: Pools,
    metric: str,
    *,
    folds: int,
    names: Sequence[SignalName] = DEFAULT_SIGNALS,
    normalise: Normalisation = "z",
    seed: int = SEED,
    progress: ReportStage = silent,
) -> WeightTuning:
    """Find weights on a collection's pools."""
    weights = weight_grid(len(names))
    values = values_of_weights(pools, normalised(pools.of(names), normalise), weights, metric, progress)
    default = values_of_default(pools, metric, normalise)[None]
    normalisation = {} if normalise == "z" else {"normalise": normalise}
    methods = [_blend(normalisation), *(_blend({"signals": _named(names, row), **normalisation}) for row in weights)]
    tuning = choose(metric, tuple(methods), np.concatenate([default, values]), folds=folds, seed=seed)
    worth = tuple(_worth(place, name, weights, values, folds, seed) for place, name in enumerate(names))
    return WeightTuning(tuning, worth)


def summary_of_weights(
    found: WeightTuning, pools: Pools, folds: int, seed: int = SEED, *, sampled: bool = False
) -> dict[str, Any]:
    """Return the file of weights; see :func:`es_ttc.lab.evaluation.tuning.summary_of`."""
    about = (pools.data, pools.split, pools.settings, pools.encoder)
    summary = summary_of(found.tuning, *about, folds, seed, sampled=sampled, most=_MAX_TRIED)
    return {**summary, "clear": found.clear}


def _blend(params: Mapping[str, Any]) -> EvaluatedMethod:
    rescorer = load("blend")
    return EvaluatedMethod(rescorer.name, parse_params(rescorer, params), rescorer)


def _named(names: Sequence[SignalName], row: Float64) -> dict[SignalName, float]:
    return {name: round(float(weight), 6) for name, weight in zip(names, row, strict=True) if weight}


def weight_grid(signals: int) -> Float64:
    """Return combinations of weights, ``(c, s)``, each row's sum 1.

    The first has equal weights, the next s leave out one signal each and weigh the others equally; then comes the grid,
    those nearest to equal weights first.
    """
    parts = FINEST
    while parts > 1 and comb(parts + signals - 1, signals - 1) > MAX_WEIGHTINGS:
        parts -= 1
    bars = np.array(list(combinations(range(parts + signals - 1), signals - 1))).reshape(-1, signals - 1)
    edges = np.concatenate([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), parts + signals - 1)], axis=1)
    grid = (np.diff(edges, axis=1) - 1) / parts
    others = 1 - np.eye(signals)
    first = np.concatenate([np.full((1, signals), 1 / signals), others / others.sum(axis=1, keepdims=True)])
    others_by_distance = grid[np.argsort(np.abs(grid - first[0]).sum(axis=1), kind="stable")]
    known = (np.abs(others_by_distance[:, None] - first).max(axis=2) < _ALIKE).any(axis=1)
    return np.concatenate([first, others_by_distance[~known]])


def values_of_weights(
    pools: Pools, signals: Float32, weights: Float64, metric: str, progress: ReportStage = silent
) -> Float64:
    """Return a metric of every candidate and query, ``(c, q)``; signals are ``(q, n, s)``, weights ``(c, s)``."""
    measured, planes = measure_weights(pools, metric), np.ascontiguousarray(signals.reshape(-1, signals.shape[2]).T)
    values = np.empty((len(weights), len(pools)))
    for place, row in enumerate(weights):
        values[place] = measured(np.einsum("s,sn->n", row.astype(np.float32), planes).reshape(signals.shape[:2]))
        progress("weights", place + 1, len(weights))
    return values


def values_of_default(pools: Pools, metric: str, normalise: Normalisation = "z") -> Float64:
    """Return a metric of each query under blend's default signals and weights, ``(q,)``."""
    given = pools.of(DEFAULT_SIGNALS)
    return measure_weights(pools, metric)(by_default_weights(given, normalised(given, normalise)))


def measure_weights(pools: Pools, metric: str) -> Callable[[Float32], Float64]:
    """Return what computes a metric of each query, ``(q,)``, from scores; what all scores share is computed once."""
    values = grader(metric, [pool.judged for pool in pools.pools])
    grades = _padded([pool.grades for pool in pools.pools])
    lengths = np.array([len(pool.documents) for pool in pools.pools])
    beyond = np.arange(grades.shape[1]) >= lengths[:, None]
    relevant = np.nonzero(grades > 0)
    depth = depth_of_metric(metric)
    reaches_behind = depth is None or depth > lengths.min()

    def measured(scores: Float32) -> Float64:
        ranked = _ranked(np.where(beyond, np.float32(-np.inf), scores), grades, relevant, depth)
        return values(_with_behind(ranked, pools.pools) if reaches_behind else ranked)

    return measured


def normalised(pools: Pools, normalise: Normalisation) -> Float32:
    """Return the signals made comparable over each pool, ``(q, n, s)``; 0 behind the end of a query's pool."""
    longest = max(len(pool.documents) for pool in pools.pools)
    cube = np.zeros((len(pools), longest, len(pools.signals)), np.float32)
    for row, pool in zip(cube, pools.pools, strict=True):
        few_words = pool.trust.few_words
        row[: len(pool.documents)] = comparable_columns(pools.signals, pool.scores, normalise, few_words=few_words)
    return cube


def by_default_weights(pools: Pools, signals: Float32) -> Float32:
    """Return each pool's scores, ``(q, n)``: comparable signals, ``(q, n, s)``, with blend's default weights."""
    scores: Float32 = np.einsum("qs,qns->qn", pools.default_weights(), signals)
    return scores


def _worth(place: int, name: SignalName, weights: Float64, values: Float64, folds: int, seed: int) -> SignalGain:
    without = weights[:, place] == 0
    return SignalGain(
        name,
        compared(values[1 + place], values[0], seed),
        compared(cross_fitted(values[without], folds, seed)[1], cross_fitted(values, folds, seed)[1], seed),
    )


def _ranked(scores: Float32, grades: Grades, relevant: tuple[NDArray[np.intp], ...], depth: int | None) -> Grades:
    """Return grades in the order of scores, as deep as a metric reads; equal scores keep their order."""
    query, place = relevant
    rows, own = scores[query], scores[relevant][:, None]
    before = (rows > own) | ((rows == own) & (np.arange(scores.shape[1]) < place[:, None]))
    rank = before.sum(axis=1)
    width = grades.shape[1] if depth is None else min(depth, grades.shape[1])
    read = rank < width
    ranked = np.zeros((len(grades), width), np.int64)
    ranked[query[read], rank[read]] = grades[relevant][read]
    return ranked


def _with_behind(ranked: Grades, pools: Sequence[Pool]) -> Grades:
    rows = [np.concatenate([row[: len(pool.grades)], pool.behind]) for row, pool in zip(ranked, pools, strict=True)]
    return _padded(rows)


def _padded(rows: Sequence[NDArray[np.int64]]) -> Grades:
    padded = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded

"""Metrics of thousands of rankings at once, equal to those of :func:`es_ttc.lab.evaluation.metrics.score_by`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.metrics import check_metric
from es_ttc.vectors.tokens import Float64

Grades = NDArray[np.int64]


def depth_of_metric(metric: str) -> int | None:
    """Return how many of the first documents a metric reads; None for all."""
    _, _, cutoff = metric.partition("@")
    return int(cutoff) if cutoff else None


def values_of(metric: str, ranked: Grades, judged: Sequence[Grades]) -> Float64:
    """Return a metric of each query, ``(q,)``; see :func:`grader`."""
    return grader(metric, judged)(ranked)


def grader(metric: str, judged: Sequence[Grades]) -> Callable[[Grades], Float64]:
    """Return a function of rankings that computes a metric of each query, ``(q,)``; common parts are computed once."""
    check_metric(metric)
    family, _, _ = metric.partition("@")
    depth = depth_of_metric(metric)
    relevant = np.array([(grades > 0).sum() for grades in judged], np.float64)
    whole = _ideal(judged, depth or 0) if family == "ndcg" else relevant

    def values(ranked: Grades) -> Float64:
        return _METRICS[family](np.maximum(ranked[:, :depth], 0), whole)

    return values


def _ideal(judged: Sequence[Grades], depth: int) -> Float64:
    ideal = np.zeros((len(judged), depth))
    for row, grades in zip(ideal, judged, strict=True):
        best = np.sort(grades[grades > 0])[::-1][:depth]
        row[: len(best)] = best
    return _dcg(ideal)


def _dcg(grades: NDArray[Any]) -> Float64:
    total: Float64 = grades @ (1 / np.log2(np.arange(2, grades.shape[1] + 2)))
    return total


def _precision(ranked: Grades) -> Float64:
    """Return the sum of the precisions at each relevant document, ``(q,)``."""
    found = ranked > 0
    total: Float64 = (np.cumsum(found, axis=1) / np.arange(1, ranked.shape[1] + 1) * found).sum(axis=1)
    return total


def _ratio(part: NDArray[Any], whole: NDArray[np.float64]) -> Float64:
    values: Float64 = np.divide(part.astype(np.float64), whole, out=np.zeros(len(whole)), where=whole > 0)
    return values


_METRICS: Mapping[str, Callable[[Grades, Float64], Float64]] = {
    "ndcg": lambda ranked, ideal: _ratio(_dcg(ranked), ideal),
    "recall": lambda ranked, relevant: _ratio((ranked > 0).sum(axis=1), relevant),
    "success": lambda ranked, _: np.asarray((ranked > 0).any(axis=1), np.float64),
    "comp": lambda ranked, relevant: ((relevant > 0) & ((ranked > 0).sum(axis=1) == relevant)).astype(np.float64),
    "mrr": lambda ranked, _: _ratio(np.asarray((ranked > 0).any(axis=1)), 1.0 + (ranked > 0).argmax(axis=1)),
    "map": lambda ranked, relevant: _ratio(_precision(ranked), relevant),
}
"""From the grades of ranked documents, ``(q, depth)``, and the ideal DCG or the number of relevant documents."""

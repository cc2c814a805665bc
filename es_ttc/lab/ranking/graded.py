"""Metrics of many rankings at once, from the grades of the documents in their order. Pure numpy.

The values are those of :func:`es_ttc.lab.evaluation.metrics.score_by`, which asks trec_eval for one ranking at a time;
a search over weights asks for thousands of rankings.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.evaluation.metrics import check_metric

Float64 = NDArray[np.float64]
Grades = NDArray[np.int64]


def depth_of(metric: str) -> int | None:
    """Return how many of the first documents a metric reads; None for all."""
    _, _, cutoff = metric.partition("@")
    return int(cutoff) if cutoff else None


def values_of(metric: str, ranked: Grades, judged: Sequence[Grades]) -> Float64:
    """Return a metric of each query, ``(q,)``.

    Args:
        metric: See :func:`check_metric`.
        ranked: ``(q, n)`` grades in the ranking's order; 0 for a document that is not judged, and behind the end.
        judged: For each query the grades of all judged documents.

    Raises:
        InvalidRequest: There is no such metric.
    """
    check_metric(metric)
    family, _, cutoff = metric.partition("@")
    depth = int(cutoff) if cutoff else ranked.shape[1]
    return _METRICS[family](np.maximum(ranked[:, :depth], 0), judged, depth)


def dcg(grades: NDArray[np.float64] | Grades) -> Float64:
    """Return the discounted cumulative gain of each row, with linear gains."""
    discounts = 1 / np.log2(np.arange(2, grades.shape[1] + 2))
    total: Float64 = grades @ discounts
    return total


def _ndcg(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:
    ideal = np.zeros((len(judged), depth))
    for row, grades in zip(ideal, judged, strict=True):
        best = np.sort(grades[grades > 0])[::-1][:depth]
        row[: len(best)] = best
    return _ratio(dcg(ranked), dcg(ideal))


def _recall(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:  # noqa: ARG001
    return _ratio((ranked > 0).sum(axis=1), _relevant(judged))


def _success(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:  # noqa: ARG001
    return np.asarray((ranked > 0).any(axis=1), np.float64)


def _comp(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:  # noqa: ARG001
    relevant = _relevant(judged)
    complete: Float64 = ((relevant > 0) & ((ranked > 0).sum(axis=1) == relevant)).astype(np.float64)
    return complete


def _mrr(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:  # noqa: ARG001
    relevant = ranked > 0
    return _ratio(np.asarray(relevant.any(axis=1), np.float64), 1.0 + relevant.argmax(axis=1))


def _map(ranked: Grades, judged: Sequence[Grades], depth: int) -> Float64:
    relevant = ranked > 0
    precision = np.cumsum(relevant, axis=1) / np.arange(1, depth + 1)
    return _ratio((precision * relevant).sum(axis=1), _relevant(judged))


def _relevant(judged: Sequence[Grades]) -> Float64:
    return np.array([(grades > 0).sum() for grades in judged], np.float64)


def _ratio(part: NDArray[Any], whole: NDArray[np.float64]) -> Float64:
    values: Float64 = np.divide(part.astype(np.float64), whole, out=np.zeros(len(whole)), where=whole > 0)
    return values


_METRICS: Mapping[str, Callable[[Grades, Sequence[Grades], int], Float64]] = {
    "ndcg": _ndcg,
    "recall": _recall,
    "success": _success,
    "comp": _comp,
    "mrr": _mrr,
    "map": _map,
}

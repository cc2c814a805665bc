"""Penalties of NNN decoding: one pair for a collection, one for each query, and what training changes.

A part of `python -m benchmarks.training`. Each pair (l1, l2) of a grid decodes the 100
documents that are nearest to a query; the metric is Comp@5. `one pair` is the best on validation queries; `rule`
chooses a pair for each query by a ridge regression on properties of its similarities, fitted on validation queries;
`oracle` takes each query's best pair by the judgements, which is an upper bound and no method.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.common import table
from es_ttc.lab.evaluation.bootstrap import compare, resampled_means
from es_ttc.lab.evaluation.report import signed
from es_ttc.lab.training.data import TrainingQueries
from es_ttc.lab.training.measures import WINDOW, by_query
from es_ttc.lab.training.recipes.nnn import GRID, decoded
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.rescorers.nnn.rescorer import scores
from es_ttc.vectors.tokens import Float32, Float64

METRIC = "comp@5"
STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 500)
RIDGE = 30.0
METHODS = ("dense", "one pair", "rule", "oracle")


def values_by_pair(questions: TrainingQueries, documents: Float32) -> Float64:
    """Return the metric of every pair and query, ``(p, q)``."""
    ranked: list[list[list[int]]] = [[] for _ in GRID]
    for vector in questions.vectors:
        window = np.argsort(-(documents @ vector), kind="stable")[:WINDOW]
        dictionary = Dictionary.of(documents[window])
        for place, (l1, l2) in enumerate(GRID):
            x = solve(dictionary, vector, Penalty(l1, l2)).x
            ranked[place].append(window[np.argsort(-scores(x), kind="stable")[:10]].tolist())
    return np.array([by_query(questions, one)[METRIC] for one in ranked])


def properties(questions: TrainingQueries, documents: Float32) -> Float64:
    """Return properties of each query that need no judgement, ``(q, f)``.

    They are the greatest similarity, its distance to ranks 3, 5, 10 and 20, the mean similarity of the first ten
    documents to one another, and the share of the window within 0.1 of the greatest similarity.
    """
    rows = []
    for vector in questions.vectors:
        similarities = documents @ vector
        window = np.argsort(-similarities, kind="stable")[:WINDOW]
        top = similarities[window]
        alike = documents[window[:10]] @ documents[window[:10]].T
        between = (alike.sum() - np.trace(alike)) / 90
        ranks = [top[0] - top[min(rank, len(top)) - 1] for rank in (3, 5, 10, 20)]
        rows.append([top[0], *ranks, between, np.mean(top > top[0] - 0.1)])
    return np.array(rows, np.float64)


def predicted(features: Float64, values: Float64, others: Float64) -> Float64:
    """Return the expected values of every pair for other queries, ``(p, o)``, by ridge regression on standard scores.

    Args:
        features: ``(q, f)``.
        values: ``(p, q)``.
        others: ``(o, f)``.
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-9
    known, asked = ((one - mean) / deviation for one in (features, others))
    centred = values - values.mean(axis=1, keepdims=True)
    weights = np.linalg.solve(known.T @ known + RIDGE * np.eye(known.shape[1]), known.T @ centred.T)
    expected: Float64 = (asked @ weights).T + values.mean(axis=1, keepdims=True)
    return expected


def penalties(choosing: TrainingQueries, test: TrainingQueries, documents: Float32) -> dict[str, Any]:
    """Return the metric by pair, and query by query for one pair, the rule and the oracle."""
    known, asked = values_by_pair(choosing, documents), values_by_pair(test, documents)
    expected = predicted(properties(choosing, documents), known, properties(test, documents))
    chosen, places = int(np.argmax(known.mean(axis=1))), np.arange(asked.shape[1])
    by_cosine = [np.argsort(-(documents @ vector), kind="stable")[:10].tolist() for vector in test.vectors]
    return {
        "pairs": asked.mean(axis=1).tolist(),
        "pair": GRID[chosen],
        "values": {
            "dense": by_query(test, by_cosine)[METRIC],
            "one pair": asked[chosen].tolist(),
            "rule": asked[np.argmax(expected, axis=0), places].tolist(),
            "oracle": asked.max(axis=0).tolist(),
        },
        "steps": by_steps(test, documents, GRID[chosen]),
    }


def by_steps(questions: TrainingQueries, documents: Float32, pair: tuple[float, float]) -> dict[str, float]:
    """Return the metric after so many steps of FISTA over the whole corpus."""
    rows, queries = torch.from_numpy(documents), torch.from_numpy(questions.vectors)
    found = {}
    for steps in STEPS:
        order = decoded(rows, queries, *pair, steps=steps)[0].sort(dim=1, descending=True, stable=True).indices[:, :10]
        found[str(steps)] = float(np.mean(by_query(questions, order.tolist())[METRIC]))
    return found


def methods_table(named: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a table of one pair, the rule and the oracle for every set of vectors; means over seeds."""
    lines = []
    for name, seeds in named.items():
        mean = {one: np.mean([seed["values"][one] for seed in seeds], axis=0) for one in METHODS}
        pairs = np.mean([seed["pairs"] for seed in seeds], axis=0)
        chosen = "; ".join(sorted({"l1 {:g}, l2 {:g}".format(*seed["pair"]) for seed in seeds}))
        cells = [difference(mean[one], mean[base]) for one, base in zip(METHODS[1:], METHODS, strict=False)]
        spread = f"{pairs.min():.3f} to {pairs.max():.3f} ({pairs.std():.3f})"
        lines.append((name, f"{mean['dense'].mean():.3f}", *cells, chosen, spread))
    columns = ("vectors", "dense", "one pair - dense", "rule - one pair", "oracle - rule", "chosen", "all pairs")
    return table(columns, lines)


def steps_table(named: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a table of the metric by the number of steps of FISTA; means over seeds."""
    lines = []
    for name, seeds in named.items():
        cells = [f"{np.mean([seed['steps'][str(steps)] for seed in seeds]):.3f}" for steps in STEPS]
        dense = np.mean([seed["values"]["dense"] for seed in seeds])
        lines.append((name, f"{dense:.3f}", *cells))
    return table(("vectors", "dense", *(f"T {steps}" for steps in STEPS)), lines)


def difference(own: Float64, other: Float64) -> str:
    """Return a paired difference with its 95 % interval; bold where it is clear."""
    means = resampled_means(np.stack([own, other]))
    versus = compare(own, other, means[:, 0], means[:, 1])
    clear = "**" if versus.interval.low > 0 or versus.interval.high < 0 else ""
    return f"{clear}{signed(versus.delta)}{clear} ({signed(versus.interval.low)} to {signed(versus.interval.high)})"


def show(named: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print both tables."""
    print(f"{METRIC} by the way in which the penalties are chosen:\n")
    print(methods_table(named))
    print(f"{METRIC} by the number T of steps of FISTA, with the one pair:\n")
    print(steps_table(named), flush=True)

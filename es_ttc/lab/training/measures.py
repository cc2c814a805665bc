"""Measures of a batch of scores, which select the best epoch; and figures before and after training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from es_ttc.lab.evaluation.metrics import score
from es_ttc.lab.ranking.graded import values_of
from es_ttc.lab.training.data import TrainingQueries, TrainingTask
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.rescorers.nnn.rescorer import scores
from es_ttc.vectors.tokens import Float32, Float64


def measure_encoder(name: str, scores: Tensor, relevant: Tensor) -> Float64:
    """Return a metric of each query, ``(q,)``, of scores, ``(q, n)``; of equal scores the earlier one ranks first."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    ranked = relevant.gather(1, order).long().numpy()
    return values_of(name, ranked, [np.ones(count, np.int64) for count in relevant.sum(dim=1).tolist()])


METRICS = ("recall@3", "recall@5", "comp@3", "comp@5", "ndcg@10")
WINDOW = 100
_DEPTH = 10


def rankings(documents: Float32, queries: Float32, penalty: Penalty | None = None) -> list[list[int]]:
    """Return each query's first documents, by cosine or, with a penalty, as the method `nnn` orders a window of 100."""
    found = []
    for vector in queries:
        order = np.argsort(-(documents @ vector), kind="stable")[:WINDOW]
        if penalty is not None:
            solution = solve(Dictionary.of(documents[order]), vector, penalty)
            order = order[np.argsort(-scores(solution.x), kind="stable")]
        found.append(order[:_DEPTH].tolist())
    return found


def by_query(questions: TrainingQueries, ranked: list[list[int]]) -> dict[str, list[float]]:
    """Return each metric query by query."""
    qrels = {str(number): dict.fromkeys(map(str, one.tolist()), 1) for number, one in enumerate(questions.relevant)}
    runs = {str(number): [str(place) for place in one] for number, one in enumerate(ranked)}
    found = score(qrels, runs)
    return {metric: found.values[metric].tolist() for metric in METRICS}


def figures(questions: TrainingQueries, documents: Float32, penalty: Penalty | None = None) -> dict[str, float]:
    """Return Recall and Comp at 3 and 5, and nDCG at 10."""
    values = by_query(questions, rankings(documents, questions.vectors, penalty))
    return {metric: float(np.mean(found)) for metric, found in values.items()}


def before_and_after(
    before: TrainingTask, after: TrainingTask, params: Mapping[str, Any] | None
) -> dict[str, dict[str, float]]:
    """Return figures before and after training; also for the method `nnn` if it has parameters."""
    found = {}
    for name, plain, trained in (("valid", before.valid, after.valid), ("test", before.test, after.test)):
        if plain is None or trained is None:
            continue
        found[f"{name}, dense, before"] = figures(plain, before.documents)
        found[f"{name}, dense, after"] = figures(trained, after.documents)
        if params is not None:
            found[f"{name}, nnn, after"] = figures(trained, after.documents, Penalty(params["l1"], params["l2"]))
    return found

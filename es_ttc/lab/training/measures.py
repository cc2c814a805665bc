"""Measures of a batch of scores, which select the best epoch; and figures before and after training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.metrics import score
from es_ttc.lab.training.data import Task, TrainingQueries
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from es_ttc.rescorers.nnn.rescorer import scores
from es_ttc.vectors.tokens import Float32


def found_at(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return the number of relevant documents among the first k, ``(b,)``; of equal scores the earlier ranks first."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    return relevant.gather(1, order).sum(dim=1)


def comp_at(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return whether all relevant documents are among the first k, ``(b,)`` of 0 and 1 (NNN decoding, section 4)."""
    return (found_at(scores, relevant, k) == relevant.sum(dim=1)).double()


def recall_at(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return the share of the relevant documents that are among the first k, ``(b,)``."""
    return found_at(scores, relevant, k).double() / relevant.sum(dim=1)


def ndcg_at(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return nDCG of relevance 0 or 1, ``(b,)``."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    gains = relevant.gather(1, order).double()
    discounts = 1 / torch.log2(torch.arange(2, gains.shape[1] + 2, dtype=torch.float64, device=scores.device))
    best = torch.stack([discounts[:count].sum() for count in relevant.sum(dim=1).clamp(max=k).tolist()])
    return (gains * discounts).sum(dim=1) / best


MEASURES = {"comp": comp_at, "recall": recall_at, "ndcg": ndcg_at}


def measure(name: str, scores: Tensor, relevant: Tensor) -> Tensor:
    """Return a measure by its name, e.g. ``comp@5``, ``(b,)``."""
    family, cutoff = check_measure(name)
    return MEASURES[family](scores, relevant, cutoff)


def check_measure(name: str) -> tuple[str, int]:
    """Return a measure's family and cutoff."""
    family, _, cutoff = name.partition("@")
    if family not in MEASURES or not (cutoff.isascii() and cutoff.isdigit() and int(cutoff) > 0):
        raise InvalidRequest(f"unknown metric [{name}]: take comp@k, recall@k or ndcg@k, e.g. comp@5")
    return family, int(cutoff)


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


def before_and_after(before: Task, after: Task, params: Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
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

"""Measures of a batch of scores, for the selection of the best epoch."""

import torch
from torch import Tensor

from es_ttc.errors import InvalidRequest


def found_at(scores: Tensor, relevant: Tensor, k: int) -> Tensor:
    """Return the number of relevant documents among the first k, ``(b,)``.

    Args:
        scores: ``(b, n)``; of equal scores the earlier one ranks first.
        relevant: ``(b, n)`` bool.
    """
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

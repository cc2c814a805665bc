"""FISTA for the non-negative elastic net, unrolled: every step is a differentiable operation (NNN decoding, 3.2).

The problem and its numpy twin are :mod:`es_ttc.rescorers.nnn.objective` and :mod:`es_ttc.rescorers.nnn.fista`.
"""

import math

import torch
from torch import Tensor


def lipschitz(documents: Tensor, l2: Tensor | float = 0.0) -> Tensor:
    """Return ``L``, the greatest eigenvalue of ``D^T D`` plus l2: the steepest the gradient's slope gets."""
    with torch.no_grad():
        rows = documents.detach()
        smaller = rows if rows.shape[0] < rows.shape[1] else rows.T
        greatest: Tensor = torch.linalg.eigvalsh(smaller @ smaller.T)[-1]
        return greatest + l2


def unrolled(
    documents: Tensor,
    queries: Tensor,
    l1: Tensor | float,
    l2: Tensor | float,
    *,
    steps: int,
    bound: Tensor | float | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Return the coefficients after so many steps of equation 5 from 0, ``(b, n)``, none negative.

    Args:
        documents: ``(n, d)`` the dictionary's rows.
        queries: ``(b, d)``, each a problem of its own.
        bound: ``L``; :func:`lipschitz` if None.
        scales: ``(steps,)`` positive factors of the step 1/L, where steps are learned; none for the paper's own.
    """
    size = lipschitz(documents, l2) if bound is None else bound
    target = queries @ documents.T
    gram = documents @ documents.T if len(documents) <= 2 * documents.shape[1] else None
    x = torch.zeros_like(target)
    ahead = x
    theta = 1.0
    for step in range(steps):
        rebuilt = ahead @ gram if gram is not None else (ahead @ documents) @ documents.T
        length = 1 / size if scales is None else scales[step] / size
        following = torch.relu(ahead - length * (rebuilt - target + l2 * ahead + l1))
        theta_next = (1 + math.sqrt(1 + 4 * theta * theta)) / 2
        ahead = following + (theta - 1) / theta_next * (following - x)
        x, theta = following, theta_next
    return x


def lacking(documents: Tensor, queries: Tensor, x: Tensor, l1: Tensor | float) -> Tensor:
    """Return by how much each document's inner product with the residual exceeds l1, ``(b, n)``.

    At a solution it is ``l2 x`` for the selected ones and not positive for the others (the KKT conditions of section
    2.2): how far those are from being selected.
    """
    return (queries - x @ documents) @ documents.T - l1


def selection_scores(
    documents: Tensor, queries: Tensor, x: Tensor, l1: Tensor | float, relevant: Tensor, *, slack: float = 1.0
) -> Tensor:
    """Return the scores for the set loss: coefficients, and ``slack`` times the gap of unselected relevant documents.

    A coefficient of 0 has no gradient, so training could never select a relevant document that the solver left out; its
    gap to selection has one. ``slack = 0`` is the loss on coefficients alone, as in the paper.

    Args:
        documents: ``(n, d)``.
        queries: ``(b, d)``.
        x: ``(b, n)`` coefficients.
        relevant: ``(b, n)`` bool.
    """
    if slack == 0:
        return x
    lack = lacking(documents, queries, x, l1).clamp(max=0)
    return torch.where((x == 0) & relevant, slack * lack, x)

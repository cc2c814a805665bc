"""The losses, as pure functions of scores."""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor


def info_nce(queries: Tensor, documents: Tensor, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """Return the asymmetric in-batch InfoNCE loss (NNN decoding, equation 21): each query against all documents.

    Queries and their positives are ``(b, d)`` unit rows; `excluded` ``(b, b)`` are other queries' positives that are
    relevant to the query too, and no negatives.
    """
    logits = queries @ documents.T / temperature
    if excluded is not None:
        logits = logits.masked_fill(excluded, float("-inf"))
    return F.cross_entropy(logits, torch.arange(len(queries), device=logits.device))


def set_loss(scores: Tensor, relevant: Tensor, *, margin: float, temperature: float) -> Tensor:
    """Return NNN-Tr's loss (its equation 6, reconstructed from its description).

    "A relaxation of the indicator via temperature with margin factor; the softmin over S and the softmax over the
    complement enforce that every relevant coefficient is above every irrelevant one by a multiplicative margin"::

        softplus((m softmax_t{x_j : j not in S} - softmin_t{x_i : i in S}) / t)

    with ``softmax_t = t log sum exp(x / t)`` and ``softmin_t = -softmax_t(-x)``, the smooth bounds of the greatest and
    the least. For m = 1 it is ``log(1 + sum_i sum_j exp((x_j - x_i) / t))``.

    Args:
        scores: ``(b, n)``.
        relevant: ``(b, n)`` bool; at least one of each query's.
        margin: m, 1 or more.
    """
    least = -temperature * torch.logsumexp((-scores / temperature).masked_fill(~relevant, float("-inf")), dim=1)
    greatest = temperature * torch.logsumexp((scores / temperature).masked_fill(relevant, float("-inf")), dim=1)
    return F.softplus((margin * greatest - least) / temperature).mean()


def listwise_multi_label(scores: Tensor, labels: Tensor) -> Tensor:
    """Return COLT's list-wise loss of ``(b, k)`` scores and labels: cross-entropy with labels that share 1."""
    predicted = torch.softmax(scores, dim=1)
    targets = labels / labels.sum(dim=1, keepdim=True)
    log_rest = torch.log1p(-predicted.clamp(max=1 - 1e-6))
    return -(targets * torch.log(predicted) + (1 - targets) * log_rest).mean()


def cross_view(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Return COLT's contrastive loss between two views of the same items, ``(b, d)`` each."""
    return info_nce(F.normalize(one, dim=1), F.normalize(other, dim=1), temperature)

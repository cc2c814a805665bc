"""Heads as torch modules; each becomes a layer of :mod:`es_ttc.encoders.heads`, which serves it."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from es_ttc.encoders.heads import Layer, Linear, Mlp
from es_ttc.vectors.tokens import Float32

FIRST_MIX = 0.1  # initial mixing coefficient (the paper's own value is not stated)


class MixedMlp(nn.Module):
    """NNN-Tr's adapter (B.5): ``norm((1 - a) e + a MLP(e))``, a learned; the outer layer begins with zeros."""

    def __init__(self, dims: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = _network(dims, hidden)
        self.mix = nn.Parameter(torch.tensor(FIRST_MIX))

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows."""
        mapped = self.outer(F.gelu(self.inner(rows), approximate="tanh"))
        return F.normalize((1 - self.mix) * rows + self.mix * mapped, dim=-1)

    def layer(self) -> Layer:
        """Return it as a layer for serving."""
        mix = float(self.mix.detach())
        return _mlp(self.inner, self.outer, 1 - mix, mix)


class ResidualMlp(nn.Module):
    """Appendix C's residual two-layer network: ``norm(e + MLP(e))``, the identity at the start."""

    def __init__(self, dims: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = _network(dims, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows."""
        return F.normalize(rows + self.outer(F.gelu(self.inner(rows), approximate="tanh")), dim=-1)

    def layer(self) -> Layer:
        """Return it as a layer for serving."""
        return _mlp(self.inner, self.outer, 1.0, 1.0)


class LinearHead(nn.Module):
    """Appendix C's d x d projection: ``norm(W e)``, the identity at the start."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(dims))

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows."""
        return F.normalize(rows @ self.matrix.T, dim=-1)

    def layer(self) -> Layer:
        """Return it as a layer for serving."""
        return Linear(_array(self.matrix), np.zeros(len(self.matrix), np.float32))


class LowRank(nn.Module):
    """Appendix C's residual metric of low rank: ``norm(e + U V^T e)``, the identity at the start."""

    def __init__(self, dims: int, rank: int) -> None:
        super().__init__()
        self.inward = nn.Parameter(torch.randn(dims, rank) / dims**0.5)
        self.outward = nn.Parameter(torch.zeros(dims, rank))

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows."""
        return F.normalize(rows + rows @ self.inward @ self.outward.T, dim=-1)

    def layer(self) -> Layer:
        """Return it as a layer for serving: combined into one matrix."""
        dims = len(self.inward)
        matrix = torch.eye(dims, device=self.inward.device) + self.outward @ self.inward.T
        return Linear(_array(matrix), np.zeros(dims, np.float32))


def whitening(rows: Float32, *, ridge: float = 1e-3) -> Linear:
    """Return the PCA whitening ``S^-1/2 U^T (e - m)`` of ``(n, d)`` vectors; `ridge` is relative."""
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows.astype(np.float64) - mean
    values, directions = np.linalg.eigh(centred.T @ centred / len(rows))
    scale = 1 / np.sqrt(np.maximum(values, 0) + ridge * values[-1])
    return Linear((directions * scale).T.astype(np.float32), mean.astype(np.float32))


def _network(dims: int, hidden: int) -> tuple[nn.Linear, nn.Linear]:
    """Return the layers of a network whose output is zero at the start."""
    inner, outer = nn.Linear(dims, hidden), nn.Linear(hidden, dims)
    nn.init.zeros_(outer.weight)
    nn.init.zeros_(outer.bias)
    return inner, outer


def _mlp(inner: nn.Linear, outer: nn.Linear, keep: float, take: float) -> Mlp:
    mix = np.array([keep, take], np.float32)
    return Mlp(_array(inner.weight), _array(inner.bias), _array(outer.weight), _array(outer.bias), mix)


def _array(tensor: Tensor) -> Float32:
    array: Float32 = tensor.detach().float().cpu().numpy().copy()
    return array

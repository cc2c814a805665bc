"""Heads: small trained maps from an encoder's vectors to better ones, applied with numpy alone.

They are trained with torch (:mod:`es_ttc.lab.training`) and served without it: a two-layer network is two matrix
products. A head is a sequence of layers, each of which returns unit rows; a row of zeros (a text without tokens) stays
zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32

HeadKind = Literal["mlp", "linear", "table"]
HeadArrays = Mapping[str, NDArray[np.float32]]

SAME = 0.999  # minimum cosine for a vector to count as one of a table's: two backends of one encoder agree to this
_GELU = np.float32(np.sqrt(2 / np.pi))


class Layer(Protocol):
    """One map of unit rows to unit rows."""

    kind: ClassVar[HeadKind]

    @property
    def dims(self) -> int:
        """Number of components of its input and output."""

    def __call__(self, rows: Float32) -> Float32:
        """Map non-zero rows, ``(n, d)``; the result need not have unit length."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """``keep e + take (W2 GELU(W1 e + b1) + b2)``.

    NNN decoding's adapter (its appendix B.5) has ``keep = 1 - a`` and ``take = a``; a residual network has ones.
    """

    kind: ClassVar[HeadKind] = "mlp"
    inner: Float32  # (h, d) W1
    inner_bias: Float32
    outer: Float32  # (d, h) W2
    outer_bias: Float32
    mix: Float32  # (2,) keep and take

    @property
    def dims(self) -> int:
        """Components of a row."""
        return int(self.outer.shape[0])

    def __call__(self, rows: Float32) -> Float32:
        """Map rows."""
        hidden = gelu(rows @ self.inner.T + self.inner_bias)
        keep, take = self.mix[:1], self.mix[1:]
        taken: Float32 = (hidden @ self.outer.T + self.outer_bias) * take
        kept: Float32 = rows * keep
        return kept + taken


@dataclass(frozen=True, slots=True)
class Linear:
    """``W (e - m)``: a linear projection (m = 0), a residual one of low rank (W = I + U V^T), a whitening."""

    kind: ClassVar[HeadKind] = "linear"
    matrix: Float32
    mean: Float32

    @property
    def dims(self) -> int:
        """Components of a row."""
        return int(self.matrix.shape[0])

    def __call__(self, rows: Float32) -> Float32:
        """Map rows."""
        centred: Float32 = (rows - self.mean).astype(np.float32, copy=False)
        mapped: Float32 = centred @ self.matrix.T
        return mapped


@dataclass(frozen=True, slots=True)
class VectorTable:
    """A map with its own vector for each of some vectors; every other vector does not change.

    COLT learns a vector for each document, which cannot be computed from a text: a document that was not in the
    training data keeps its encoder's vector.
    """

    kind: ClassVar[HeadKind] = "table"
    known: Float32
    learned: Float32

    @property
    def dims(self) -> int:
        """Components of a row."""
        return int(self.known.shape[1])

    def __call__(self, rows: Float32) -> Float32:
        """Map rows."""
        cosines = rows @ self.known.T
        nearest = np.argmax(cosines, axis=1)
        found = cosines[np.arange(len(rows)), nearest] >= SAME
        mapped: Float32 = np.where(found[:, None], self.learned[nearest], rows)
        return mapped


LAYERS: Mapping[HeadKind, type[Mlp] | type[Linear] | type[VectorTable]] = {
    "mlp": Mlp,
    "linear": Linear,
    "table": VectorTable,
}


@dataclass(frozen=True, slots=True)
class Head:
    """Layers, applied one after the other; an empty head changes nothing."""

    layers: tuple[Layer, ...] = ()

    def __call__(self, rows: Float32) -> Float32:
        """Return ``(n, d)`` unit rows mapped, of unit length; zero rows stay."""
        if not self.layers or not len(rows):
            return rows
        present = rows.any(axis=1)
        mapped = rows[present]
        for layer in self.layers:
            mapped = unit(layer(mapped))
        result = np.zeros_like(rows)
        result[present] = mapped
        return result

    def alone(self, rows: Float32) -> Float32:
        """Return the same head, applied to each row separately: its bits do not depend on the other rows."""
        if not self.layers:
            return rows
        parts = [self(rows[place : place + 1]) for place in range(len(rows))]
        return np.concatenate(parts) if parts else rows

    def arrays(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """Return the weights by name."""
        return {
            f"{prefix}.{number}.{field.name}": np.ascontiguousarray(getattr(layer, field.name), np.float32)
            for number, layer in enumerate(self.layers)
            for field in fields(layer)  # type: ignore[arg-type]  # all layers are dataclasses
        }

    def equals(self, other: "Head") -> bool:
        """Return whether another head has the same layers with the same weights."""
        if self.kinds != other.kinds:
            return False
        own, its = self.arrays("head"), other.arrays("head")
        return all(np.array_equal(own[name], its[name]) for name in own)

    @property
    def kinds(self) -> list[HeadKind]:
        """The kinds of its layers, for a card."""
        return [layer.kind for layer in self.layers]

    @classmethod
    def of(cls, kinds: Sequence[HeadKind], arrays: HeadArrays, prefix: str) -> Self:
        """Return the head with the weights of :meth:`arrays`."""
        layers = [
            LAYERS[kind](*(arrays[f"{prefix}.{number}.{field.name}"] for field in fields(LAYERS[kind])))
            for number, kind in enumerate(kinds)
        ]
        return cls(tuple(layers))


def gelu(values: Float32) -> Float32:
    """Return Gaussian error linear units in their tanh form (Hendrycks and Gimpel, 2016, section 2)."""
    inner = _GELU * (values + np.float32(0.044715) * values * values * values)
    result: Float32 = np.float32(0.5) * values * (1 + np.tanh(inner))
    return result


def unit(rows: Float32) -> Float32:
    """Return rows of length 1; zero rows stay."""
    lengths: Float32 = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    lengths[lengths == 0] = 1
    return rows / lengths

"""Token vectors as a centroid and a residual of 2 or 4 bits a component (ColBERTv2, arXiv 2112.01488, section 3.3).

Similar tokens share a centroid, and the residuals have a similar distribution in every component, so one short list of
weights represents them. ColBERTv2 takes the list from quantiles; here it minimises the squared error (Lloyd), which 4
bits need.

Centroids and weights are integer multiples of one step. A vector is then decoded by integer arithmetic: one look-up in
a table for 16 bits of residual, one addition. Its length is stored as a factor, as for int8.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.tokens import Float32, TokenVectors

Bits = Literal[2, 4]
Int8 = NDArray[np.int8]
UInt16 = NDArray[np.uint16]

MOST_CENTROIDS = 2**16
DEFAULT_CENTROIDS = 256
"""A number that fits into an index's mapping: 96 KiB at 384 dimensions."""

_WORD_BITS = 16
_REACH = 126  # greatest sum of a centroid's and a weight's steps, with room for rounding both up to 127
_SAMPLE = 2**16  # vectors that are learned from, at most
_ROUNDS = 10
_WEIGHT_ROUNDS = 50
_BLOCK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Centroids:
    """Centroids for a search of the nearest one.

    Attributes:
        columns: ``(d, k)`` float32.
        half_squares: ``(k,)`` float32, half of their squared lengths.
    """

    columns: Float32
    half_squares: Float32

    @classmethod
    def of(cls, centroids: Float32) -> Self:
        """Return centroids ``(k, d)`` for a search."""
        return cls(centroids.T, np.einsum("kd,kd->k", centroids, centroids) / 2)

    def nearest(self, vectors: Float32) -> NDArray[np.intp]:
        """Return each vector's nearest centroid by Euclidean distance, ``(n,)`` for ``(n, d)`` vectors."""
        nearest = np.empty(len(vectors), dtype=np.intp)
        for start in range(0, len(vectors), _BLOCK):
            products = vectors[start : start + _BLOCK] @ self.columns
            products -= self.half_squares
            nearest[start : start + _BLOCK] = np.argmax(products, axis=1)
        return nearest


@dataclass(frozen=True, eq=False)
class Codebook:
    """The codebook of one index.

    Attributes:
        centroids: ``(k, d)`` int8, in steps.
        weights: ``(2**bits,)`` int8, ascending, in steps.
        step: Length of a step.
    """

    centroids: Int8
    weights: Int8
    step: float

    @property
    def dims(self) -> int:
        """Components of a vector."""
        return int(self.centroids.shape[1])

    @property
    def bits(self) -> int:
        """Bits of a component's residual."""
        return len(self.weights).bit_length() - 1

    @property
    def words(self) -> int:
        """16-bit words of a vector's residual."""
        return -(-self.dims * self.bits // _WORD_BITS)

    @cached_property
    def means(self) -> Centroids:
        """The centroids in the vectors' own unit."""
        return Centroids.of(self.centroids * np.float32(self.step))

    @cached_property
    def table(self) -> NDArray[np.uint32] | NDArray[np.uint64]:
        """The weights of each 16-bit word, ``(65536,)``, as the bytes of one number."""
        per_word = _WORD_BITS // self.bits
        words = np.arange(2**_WORD_BITS)[:, None]
        codes = words >> (self.bits * np.arange(per_word)) & (len(self.weights) - 1)
        packed = np.ascontiguousarray(self.weights[codes])
        return packed.view(np.uint64)[:, 0] if per_word == packed.itemsize * 8 else packed.view(np.uint32)[:, 0]


@dataclass(frozen=True, slots=True)
class Residuals:
    """The token vectors of one document, encoded with a codebook; n tokens.

    Attributes:
        centroids: ``(n,)`` uint16, the nearest centroid of each.
        words: ``(n, words)`` uint16, the residuals' codes; the first component is in the lowest bits.
        factors: ``(n,)`` float32, which convert steps to the vector's own length.
    """

    centroids: UInt16
    words: UInt16
    factors: Float32

    def part(self, rows: slice) -> "Residuals":
        """Return those of some vectors, without a copy."""
        return Residuals(self.centroids[rows], self.words[rows], self.factors[rows])


def learn(vectors: Float32, bits: Bits, *, centroids: int = DEFAULT_CENTROIDS, seed: int = 0) -> Codebook:
    """Learn a codebook from a sample.

    Args:
        vectors: ``(m, d)`` float32 unit rows, some thousands or more; 65,536 of them are used.
        bits: Number of bits per component of a residual.
        centroids: Number of centroids k; fewer where there are fewer vectors.
        seed: Seed of the sample and of the first centroids.

    Raises:
        ValueError: There is no vector, or one that is not finite.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"a codebook is learned from vectors (m, d), got shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a codebook is learned from finite vectors, got a NaN or an infinity")
    random = np.random.default_rng(seed)
    if len(vectors) > _SAMPLE:
        vectors = vectors[np.sort(random.choice(len(vectors), _SAMPLE, replace=False))]
    means = _k_means(vectors, min(centroids, len(vectors), MOST_CENTROIDS), random)
    residuals = vectors - means[Centroids.of(means).nearest(vectors)]
    weights = _least_squares_weights(residuals, 2**bits)
    step = float(np.abs(means).max() + np.abs(weights).max()) / _REACH or 1.0
    return Codebook(np.rint(means / step).astype(np.int8), np.rint(weights / step).astype(np.int8), step)


def encode(matrix: Float32, codebook: Codebook) -> Residuals:
    """Encode token vectors with a codebook.

    Args:
        matrix: ``(n, d)`` float32 unit (or zero) rows; n may be 0.
        codebook: A codebook with the same number of dimensions.

    Raises:
        ValueError: The matrix has other dimensions, or contains a component that is not finite.
    """
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != codebook.dims:
        raise ValueError(f"a codebook of {codebook.dims} dimensions cannot hold vectors of shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("token vectors must be finite, got a NaN or an infinity")
    centroids = codebook.means.nearest(matrix).astype(np.uint16)
    steps = matrix / np.float32(codebook.step) - codebook.centroids[centroids]
    borders = (codebook.weights[1:].astype(np.float32) + codebook.weights[:-1]) / 2
    per_word = _WORD_BITS // codebook.bits
    codes = np.zeros((len(matrix), codebook.words * per_word), dtype=np.uint8)
    for border in borders:  # a few comparisons are many times faster than a search
        codes[:, : codebook.dims] += steps > border
    words = _packed(codes.reshape(len(matrix), codebook.words, per_word), codebook.bits)
    restored = _steps(centroids, words, codebook).astype(np.float32)
    lengths = np.linalg.norm(restored, axis=1)
    own = np.linalg.norm(matrix, axis=1)
    factors = np.divide(own, lengths, out=np.zeros_like(own), where=lengths > 0)
    return Residuals(centroids, words, factors)


def decode(residuals: Residuals, codebook: Codebook) -> TokenVectors:
    """Return the vectors, as int8 with one factor per row.

    Raises:
        ValueError: They were not encoded with this codebook.
    """
    n = len(residuals.centroids)
    if residuals.words.shape != (n, codebook.words) or residuals.factors.shape != (n,):
        raise ValueError(f"residuals of shape {residuals.words.shape} are not of {codebook.dims} dimensions")
    if n and int(residuals.centroids.max()) >= len(codebook.centroids):
        raise ValueError(f"residuals name centroid {residuals.centroids.max()} of {len(codebook.centroids)}")
    return TokenVectors(_steps(residuals.centroids, residuals.words, codebook), residuals.factors)


def _packed(codes: NDArray[np.uint8], bits: int) -> UInt16:
    """Return the words ``(n, words)`` of the codes ``(n, words, codes of a word)``; the first code is lowest."""
    words = codes[:, :, 0].astype(np.uint16)
    for position in range(1, codes.shape[2]):
        words |= codes[:, :, position].astype(np.uint16) << np.uint16(bits * position)
    return words


def _steps(centroids: UInt16, words: UInt16, codebook: Codebook) -> Int8:
    weights = np.take(codebook.table, words).view(np.int8)
    values = weights if weights.shape[1] == codebook.dims else np.ascontiguousarray(weights[:, : codebook.dims])
    values += np.take(codebook.centroids, centroids, axis=0)
    return values


def _k_means(vectors: Float32, k: int, random: np.random.Generator) -> Float32:
    """Run Lloyd's algorithm; a centroid without vectors is moved to a random one."""
    centroids = vectors[random.choice(len(vectors), k, replace=False)].copy()
    for _ in range(_ROUNDS):
        nearest = Centroids.of(centroids).nearest(vectors)
        order = np.argsort(nearest, kind="stable")
        found, starts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(vectors[order], starts, axis=0)
        centroids[found] = sums / np.diff(starts, append=len(vectors))[:, None].astype(np.float32)
        lost = np.setdiff1d(np.arange(k), found)
        centroids[lost] = vectors[random.choice(len(vectors), len(lost), replace=False)]
    return centroids


def _least_squares_weights(residuals: Float32, count: int) -> Float32:
    """Return the ascending values that stand for components with the least squared error, found from quantiles on."""
    ordered = np.sort(residuals, axis=None).astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    weights = np.quantile(ordered, (np.arange(count) + 0.5) / count)
    for _ in range(_WEIGHT_ROUNDS):
        inner = np.searchsorted(ordered, (weights[1:] + weights[:-1]) / 2)
        borders = np.concatenate(([0], inner, [len(ordered)]))
        sizes = np.diff(borders)
        weights = np.divide(np.diff(sums[borders]), sizes, out=weights.copy(), where=sizes > 0)
    result: Float32 = weights.astype(np.float32)
    return result

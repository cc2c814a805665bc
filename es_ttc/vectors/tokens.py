"""Token vectors of one document, as stored: float32, float16, int8 with one scale a row, or codes of 4 or 2 bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from es_ttc.vectors.codecs import STORED_CODECS, StoredCodec

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Codec = Literal["float32"] | StoredCodec
CODECS: tuple[Codec, ...] = ("float32", *STORED_CODECS)  # from the finest to the coarsest
Bits = Literal[4, 2]
CODE_BITS: dict[Codec, Bits] = {"int4": 4, "int2": 2}

BLOCK = 64  # components whose codes share a block of bytes; a row has a whole number of blocks


def code_bytes(dims: int, bits: Bits) -> int:
    """Return the bytes of the codes of one vector."""
    return -(-dims // BLOCK) * BLOCK * bits // 8


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenVectors:
    """The token vectors of one document.

    Attributes:
        values: ``(n, d)`` float32, float16 or int8; or ``(n, b)`` uint8, the codes of
            :func:`es_ttc.vectors.codes.encode`, which are of the rotated vectors. Rows have unit length once
            ``scales`` is applied (up to the rounding of the storage type), or are all zero.
        scales: ``(n,)`` float32, the factor of each row of int8 or of codes; None for the float types.
        read: Share of the text that the vectors are made from, in (0, 1]: of the characters that the encoder read
            before it reached its greatest number of tokens, times that of the words that are not left out as repeated;
            1 where it is not known.
        coded: Components of a vector in codes; 0 for the other types.
    """

    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8] | NDArray[np.uint8]
    scales: Float32 | None = None
    read: float = 1.0
    coded: int = 0

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ValueError(f"token vectors must be a matrix (n, d), got shape {self.values.shape}")
        if (self.values.dtype in (np.int8, np.uint8)) != (self.scales is not None):
            raise ValueError("scales are for int8 values and codes, and these need them")
        if (self.values.dtype == np.uint8) != (self.coded > 0):
            raise ValueError("codes need their number of components, and only they have one")
        if self.coded and self.values.shape[1] not in (code_bytes(self.coded, bits) for bits in CODE_BITS.values()):
            raise ValueError(f"rows of {self.values.shape[1]} bytes are no codes of {self.coded} components")
        if self.scales is not None and self.scales.shape != (len(self.values),):
            raise ValueError(f"one scale a row: {len(self.values)} rows, scales of shape {self.scales.shape}")
        if not 0 < self.read <= 1:
            raise ValueError(f"the share of the text that was read must be above 0 and at most 1, got {self.read}")

    def __len__(self) -> int:
        return len(self.values)

    def part(self, rows: slice) -> "TokenVectors":
        """Return some of the vectors, without a copy."""
        scales = None if self.scales is None else self.scales[rows]
        return TokenVectors(self.values[rows], scales, self.read, self.coded)

    @property
    def dims(self) -> int:
        """Number of components of each vector."""
        return self.coded or int(self.values.shape[1])

    @property
    def codec(self) -> Codec:
        """The storage type of the values."""
        if self.coded:
            return "int4" if self.values.shape[1] == code_bytes(self.coded, 4) else "int2"
        return str(self.values.dtype)  # type: ignore[return-value]  # checked by its consumers

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ScaleNorms:
    """Row norms of one document's smoothed token matrices; they do not depend on the query, so ingest stores them."""

    # (s,) the smoothing scales L, `inf` for the mean-pool endpoint; L = 1 is not stored (its norms are 1)
    scales: tuple[float, ...]
    # (s, n) float32, `values[j, i] = ||(k_L * E)[i]||` with `L = scales[j]`; or uint8 steps
    values: Float32 | NDArray[np.uint8]
    # (s, 2) float32 for uint8: the root of the least norm of a scale, and the root's step
    ranges: Float32 | None = None

    def __post_init__(self) -> None:
        if (self.values.dtype == np.uint8) != (self.ranges is not None):
            raise ValueError("ranges are for norms in steps, and these need them")

    def is_of(self, tokens: TokenVectors, scales: Sequence[float]) -> bool:
        """Return whether the first norms are a document's at some scales; ValueError if it has another length."""
        if self.values.shape != (len(self.scales), len(tokens)):
            raise ValueError(f"norms of shape {self.values.shape} for {len(self.scales)} scales, {len(tokens)} tokens")
        return self.scales[: len(scales)] == tuple(scales)

    def lengths(self) -> Float32:
        """Return the norms, ``(s, n)`` float32."""
        if self.ranges is None:
            return self.values.astype(np.float32, copy=False)
        roots = self.ranges[:, :1] + self.values * self.ranges[:, 1:]
        return roots * roots

    def in_steps(self) -> "ScaleNorms":
        """Return the norms in one byte each.

        A scale's range is divided into 255 equal steps of the norms' roots, because a cosine divides by a norm: so the
        error of a small one is small too.
        """
        if not self.values.size:
            return ScaleNorms(self.scales, self.values.astype(np.uint8), np.zeros((len(self.values), 2), np.float32))
        roots = np.sqrt(self.values.astype(np.float32, copy=False))
        least = roots.min(axis=1, keepdims=True)
        steps = (roots.max(axis=1, keepdims=True) - least) / np.float32(255)
        places = np.divide(roots - least, steps, out=np.zeros_like(roots), where=steps > 0)
        return ScaleNorms(self.scales, np.rint(places).astype(np.uint8), np.concatenate([least, steps], axis=1))

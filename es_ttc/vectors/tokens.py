"""Token vectors of one document, as stored: float32, float16, or int8 with one scale a row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class TokenVectors:
    """The token vectors of one document.

    Attributes:
        values: ``(n, d)``, dtype float32, float16 or int8. Rows have unit length once ``scales`` is applied (up to
            the rounding of the storage type), or are all zero.
        scales: ``(n,)`` float32, the factor of each int8 row; None for the float types.
        read: Share of the text's characters that the encoder read before it reached its greatest number of tokens, in
            (0, 1]; 1 for the whole text, and where it is not known.
    """

    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.int8]
    scales: Float32 | None = None
    read: float = 1.0

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ValueError(f"token vectors must be a matrix (n, d), got shape {self.values.shape}")
        if (self.values.dtype == np.int8) != (self.scales is not None):
            raise ValueError("scales are for int8 values, and int8 values need them")
        if self.scales is not None and self.scales.shape != (len(self.values),):
            raise ValueError(f"one scale a row: {len(self.values)} rows, scales of shape {self.scales.shape}")
        if not 0 < self.read <= 1:
            raise ValueError(f"the share of the text that was read must be above 0 and at most 1, got {self.read}")

    def __len__(self) -> int:
        return len(self.values)

    def part(self, rows: slice) -> "TokenVectors":
        """Return some of the vectors, without a copy."""
        return TokenVectors(self.values[rows], None if self.scales is None else self.scales[rows], self.read)

    @property
    def dims(self) -> int:
        """Number of components of each vector."""
        return int(self.values.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ScaleNorms:
    """Row norms of one document's smoothed token matrices; they do not depend on the query, so ingest stores them.

    Attributes:
        scales: ``(s,)`` the smoothing scales L, ``inf`` for the mean-pool endpoint; L = 1 is not stored (its norms
            are 1).
        values: ``(s, n)`` float32, ``values[j, i] = ||(k_L * E)[i]||`` with ``L = scales[j]``.
    """

    scales: tuple[float, ...]
    values: Float32

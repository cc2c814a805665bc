"""The documents' vectors for a solver: float32 for speed, float64 for decisions."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.nnn.objective import Float64, Rows

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Dictionary:
    """The dictionary of a problem; make it once for many queries by :meth:`of`.

    Attributes:
        rows: ``(n, d)`` float32 or float64 document vectors: of unit length, zero, or any other length.
        longest: The length of the longest row.
    """

    rows: Rows
    longest: float

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return a dictionary of a matrix, which is not copied."""
        if rows.ndim != 2 or rows.dtype not in (np.float32, np.float64):
            raise ValueError(f"a dictionary is a float matrix (n, d), got {rows.dtype} of shape {rows.shape}")
        longest = float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max(initial=0.0)))
        if not np.isfinite(longest):
            raise ValueError("a dictionary's elements must be finite")
        return cls(rows, longest)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dims(self) -> int:
        """Components of each vector."""
        return int(self.rows.shape[1])

    def at(self, places: Places) -> Float64:
        """Return some rows in float64, ``(m, d)``."""
        rows: Float64 = self.rows[places].astype(np.float64)
        return rows

    def products(self, vector: Float64) -> Rows:
        """Return each row's inner product with a vector, ``(n,)``, in the rows' own precision."""
        with np.errstate(invalid="ignore"):  # BLAS may set the flag in lanes beyond the rows; what they hold is finite
            products: Rows = self.rows @ vector.astype(self.rows.dtype)
        return products

    def rounding(self, vector: Float64) -> float:
        """Return a bound on the error of :meth:`products`: that of any order of summation."""
        unit = float(np.finfo(self.rows.dtype).eps)
        return (self.dims + 2) * unit * self.longest * float(np.linalg.norm(vector))

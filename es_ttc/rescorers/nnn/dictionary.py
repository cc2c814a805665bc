"""The documents' vectors for a solver, all and a selection with its minimum: float32 to scan, float64 to decide."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.nnn.objective import Penalty, Rows
from es_ttc.vectors.tokens import Float64

AtomPlaces = NDArray[np.intp]


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

    def at(self, places: AtomPlaces) -> Float64:
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


_INDEPENDENT = 1e-12  # minimum share of a document's squared length that the others leave unexplained


@dataclass(frozen=True, slots=True)
class Face:
    """A selection S of m documents: ``P`` on it is ``1/2 x^T H x - b^T x`` plus a constant, all float64.

    ``H = D_S D_S^T + l2 I`` is the `hessian`, ``b = D_S q - l1`` the `target`.
    """

    support: AtomPlaces
    rows: Float64
    hessian: Float64
    target: Float64

    @classmethod
    def empty(cls, dims: int) -> Self:
        """Return the selection of no document."""
        return cls(np.empty(0, np.intp), np.empty((0, dims)), np.empty((0, 0)), np.empty(0))

    def extended(self, places: AtomPlaces, dictionary: Dictionary, query: Float64, penalty: Penalty) -> "Face":
        """Return the selection with further documents; only their inner products are computed."""
        old, new = len(self.support), len(places)
        rows = dictionary.at(places)
        hessian = np.empty((old + new, old + new))
        hessian[:old, :old] = self.hessian
        hessian[old:, :old] = rows @ self.rows.T
        hessian[:old, old:] = hessian[old:, :old].T
        hessian[old:, old:] = rows @ rows.T
        hessian[range(old, old + new), range(old, old + new)] += penalty.l2
        return Face(
            np.concatenate((self.support, places)),
            np.concatenate((self.rows, rows)),
            hessian,
            np.concatenate((self.target, rows @ query - penalty.l1)),
        )

    def kept(self, keep: NDArray[np.bool_]) -> "Face":
        """Return the selection of the documents in a mask."""
        return Face(self.support[keep], self.rows[keep], self.hessian[np.ix_(keep, keep)], self.target[keep])

    def solved(self, right: Float64) -> Float64:
        """Return ``H^-1 right``; the least solution where H is singular (documents that depend on each other)."""
        try:
            return np.asarray(np.linalg.solve(self.hessian, right), np.float64)
        except np.linalg.LinAlgError:
            return np.asarray(np.linalg.lstsq(self.hessian, right)[0], np.float64)

    def slope(self, x: Float64) -> Float64:
        """Return the gradient of ``P`` on the selection, ``(m,)``."""
        slope: Float64 = self.hessian @ x - self.target
        return slope

    def value(self, x: Float64) -> float:
        """Return ``P`` on the selection, without the constant."""
        return float(x @ (self.slope(x) - self.target)) / 2

    def is_independent(self) -> bool:
        """Return whether H is safely invertible: no document's vector depends on the others', or l2 separates them."""
        try:
            factor = np.linalg.cholesky(self.hessian)
        except np.linalg.LinAlgError:
            return False
        return bool((np.diag(factor) ** 2 > _INDEPENDENT * np.diag(self.hessian)).all())

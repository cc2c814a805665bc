"""A sample of queries as its mean and covariance, for statistics along queries of every document."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and covariance of query vectors.

    A document's mean similarity with the sample is ``d . mean`` and its variance ``|F d|^2``, exactly: so they stand
    for statistics of every document, of those to come too.
    """

    mean: Float32  # (d,) float32
    factor: Float32  # (r, d) float32, `F^T F` is the covariance around the mean, divided by the size
    size: int  # queries in the sample

    @classmethod
    def of(cls, queries: Float32, rank: int | None = None) -> Self:
        """Return the moments of ``(m, d)`` unit rows, m >= 1, with `rank` principal directions; all if None."""
        wide = queries.astype(np.float64)
        mean = wide.mean(axis=0)
        _, spread, directions = np.linalg.svd((wide - mean) / np.sqrt(len(wide)), full_matrices=False)
        factor = (spread[:, None] * directions)[:rank]
        return cls(mean.astype(np.float32), factor.astype(np.float32), len(queries))

    def similarities(self, documents: Float32) -> tuple[Float32, Float32]:
        """Return mean and deviation of ``(n, d)`` documents' similarities with the sample's queries, each ``(n,)``."""
        projected = documents @ self.factor.T
        deviation: Float32 = np.sqrt(np.einsum("ij,ij->i", projected, projected))
        return documents @ self.mean, deviation

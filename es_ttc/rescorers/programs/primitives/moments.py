"""A sample of queries as its mean and covariance: enough for statistics along queries, and no query can be read back."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from es_ttc.vectors.tokens import Float32


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and covariance of query vectors.

    A document's mean similarity with the sample is ``d . mean`` and its variance ``d . covariance d``, exactly: so one
    matrix stands for statistics of every document, of those to come too.

    Attributes:
        mean: ``(d,)`` float32.
        covariance: ``(d, d)`` float32, around the mean, divided by the size.
        size: Queries in the sample.
    """

    mean: Float32
    covariance: Float32
    size: int

    @classmethod
    def of(cls, queries: Float32) -> Self:
        """Return the moments of a sample, ``(m, d)`` unit rows, m >= 1."""
        wide = queries.astype(np.float64)
        mean = wide.mean(axis=0)
        centred = wide - mean
        covariance = centred.T @ centred / len(wide)
        return cls(mean.astype(np.float32), covariance.astype(np.float32), len(queries))

    def similarities(self, documents: Float32) -> tuple[Float32, Float32]:
        """Return mean and standard deviation of each document's similarity with the sample's queries, each ``(n,)``."""
        variance = np.einsum("ij,ij->i", documents @ self.covariance, documents, dtype=np.float64)
        return documents @ self.mean, np.sqrt(np.maximum(variance, 0)).astype(np.float32)

"""Relevance: the probability that a document is relevant to a query, from the signals of `blend`. Pure numpy.

The model is a logistic regression on the cosines of `dense`, `spectral` and `late_interaction`, which do not depend on
the other documents, and on `blend`, the weighted mean of z-scores before it is shown as a score. No weight is negative:
a document with greater signals is never less relevant. BM25's score is part of the mean only: by itself it depends on
the fields, boosts and clauses of each search. Measured in docs/results/relevance.md.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from es_ttc.vectors.tokens import Float32

RelevanceSignal = Literal["dense", "spectral", "late_interaction", "blend"]
METHOD = "relevance"  # the `method` of a calibration's file
MIN_WINDOW = 30  # in n documents no z-score is greater than (n - 1) / sqrt(n): 5.3 in 30, 2.8 in 10


class Logistic(BaseModel):
    """A logistic regression: log-odds where all signals are 0, and what 1 of each signal adds to them, 0 or more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    intercept: float = Field(allow_inf_nan=False)
    weights: dict[RelevanceSignal, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(min_length=1)

    def of(self, signals: Mapping[str, NDArray[np.floating]]) -> NDArray[np.float64]:
        """Return the relevance of k documents, ``(k,)``, from ``(k,)`` values of each signal."""
        odds = self.intercept + sum(signals[name] * weight for name, weight in self.weights.items())
        relevance: NDArray[np.float64] = 1 / (1 + np.exp(-np.asarray(odds, np.float64)))
        return relevance


class Calibration(BaseModel):
    """What `es-ttc calibrate relevance` fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # The index and its other names: a search of one of these has a relevance
    names: tuple[str, ...] = Field(min_length=1)
    encoder: str  # identity of the encoder of the index's features
    blend: dict[str, float] | None = None  # the weights of `blend` under which it was fitted; None for the default ones
    model: Logistic  # for windows of 30 documents and more
    # Without the signal `blend`, for smaller windows: there a document's z-score is small for want of others
    few: Logistic
    queries: int
    auc: float  # probability that a relevant hit has the greater relevance of two hits, on queries that were not fitted
    error: float  # expected calibration error on these queries: how far relevance is from the share of relevant hits

    def probabilities(self, signals: Mapping[str, Float32]) -> Float32:
        """Return the relevance of k documents, ``(k,)`` float32 in [0, 1]; NaN where a document lacks a signal."""
        whole = int(np.logical_and.reduce([~np.isnan(signals[name]) for name in self.model.weights]).sum())
        return (self.model if whole >= MIN_WINDOW else self.few).of(signals).astype(np.float32)

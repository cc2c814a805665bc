"""What a model reads, and its score. The same functions serve training and searches."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.blend.normalise import comparable_columns
from es_ttc.rescorers.blend.signals import SignalName
from es_ttc.vectors.tokens import Float32, Float64


class Predictor(Protocol):
    """Trees, or what else scores rows of features."""

    def predict(self, rows: NDArray[np.floating]) -> Float64:
        """Return a value of each row, ``(n,)``."""


def model_features(names: Sequence[SignalName], scores: Float32, *, few_words: bool) -> Float32:
    """Return z-scores of ``(k, s)`` scores of signals; NaN where a document does not have one."""
    compared = comparable_columns(names, scores, "z", few_words=few_words)
    return np.where(np.isnan(scores), np.float32(np.nan), compared)


def tree_rows(features: Float32, columns: Float64) -> NDArray[np.floating]:
    """Return what trees read, ``(k, s + f)``: the signals, then the numeric fields with their own values."""
    return np.concatenate([features, columns], axis=1) if columns.shape[1] else features


def start_of(features: Float32, weights: Sequence[float] | NDArray[np.floating]) -> Float64:
    """Return blend's mean of each document, ``(k,)``, from which the trees begin."""
    present = np.asarray(weights, np.float64) * ~np.isnan(features).all(axis=0)
    mean: Float64 = np.nan_to_num(features.astype(np.float64)) @ present / max(present.sum(), 1e-12)
    return mean


def learned_scores(
    features: Float32,
    columns: Float64,
    weights: Sequence[float] | NDArray[np.floating],
    blend: float,
    trees: Predictor,
) -> Float64:
    """Return a model's scores of a window's documents, ``(k,)``, from ``(k, s)`` features and ``(k, f)`` fields."""
    return blend * start_of(features, weights) + trees.predict(tree_rows(features, columns))

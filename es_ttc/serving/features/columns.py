"""Stored features of a window's documents as columns, the form that methods read."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import no_chunks
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

Stored = dict[Feature, Any]

_FILLED = frozenset({Feature.NORMS, Feature.OFFSETS})
_ROWS = frozenset({Feature.POOLED, Feature.REVERSED})
"""Features that are one vector a document, and one matrix a window."""


def columns(documents: Sequence[Stored], features: Iterable[Feature]) -> dict[str, Any]:
    """Return a window's columns, without features that a document lacks.

    Norms and offsets are left out only if all documents lack them. A document without norms gets empty ones, which the
    method computes, and a document without offsets gets offsets of no text.
    """
    features = set(features)
    found: dict[str, Any] = {}
    for feature in features:
        with suppress(KeyError):
            found[feature.value] = [stored[feature] for stored in documents]
    for feature in _FILLED & features - found.keys() if Feature.TOKENS in features else ():
        if any(feature in stored for stored in documents):
            found[feature.value] = [
                stored[feature] if feature in stored else _empty(stored)[feature] for stored in documents
            ]
    for feature in _ROWS & found.keys():
        found[feature.value] = _matrix(found[feature.value])
    if Feature.OFFSETS in found:
        found[Feature.OFFSETS] = [offsets for offsets, _ in found[Feature.OFFSETS]]
    return found


def partial_columns(documents: Sequence[Stored], features: Iterable[Feature]) -> dict[str, Any]:
    """Return a window's columns, and for each feature that some documents lack the mask of those that have it.

    A feature that no document has is left out. A document that lacks a feature has zeros or an empty value.
    """
    found: dict[str, Any] = {}
    present: dict[Feature, NDArray[np.bool_]] = {}
    for feature in set(features):
        try:
            values: list[Any] = [stored[feature] for stored in documents]
        except KeyError:
            values = [_value_or_empty(feature, stored) for stored in documents]
            example = next((value for value in values if value is not None), None)
            if example is None:
                continue
            having = np.array([value is not None for value in values], np.bool_)
            if not having.all():
                nothing = _nothing_like(feature, example)
                present[feature] = having
                values = [nothing if value is None else value for value in values]
        if feature is Feature.OFFSETS:
            values = [offsets for offsets, _ in values]
        found[feature.value] = _matrix(values) if feature in _ROWS else values
    return {**found, "present": present}


def _value_or_empty(feature: Feature, stored: Stored) -> Any:
    """Return a document's feature, or empty norms or offsets where it has token vectors; None without either."""
    if feature in stored:
        return stored[feature]
    return _empty(stored)[feature] if feature in _FILLED and Feature.TOKENS in stored else None


def _matrix(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return vectors as rows, like :func:`numpy.stack`, which takes several times as long for short ones."""
    return np.concatenate(rows).reshape(len(rows), len(rows[0]))


def _nothing_like(feature: Feature, example: Any) -> Any:
    """Return the value for a document that lacks a feature."""
    match feature:
        case Feature.POOLED | Feature.REVERSED:
            return np.zeros_like(example)
        case Feature.TOKENS:
            return TokenVectors(np.zeros((0, example.dims), np.float32))
        case Feature.CHUNKS:
            return no_chunks(example.topic.dims)
        case _:
            return _empty({})[feature]


def _empty(stored: Stored) -> Stored:
    """Return norms of no scale and offsets of no text, with the length of a document's tokens."""
    length = len(stored[Feature.TOKENS]) if Feature.TOKENS in stored else 0
    return {
        Feature.NORMS: ScaleNorms((), np.zeros((0, length), np.float32)),
        Feature.OFFSETS: (np.zeros((length, 3), np.int32), ()),
    }

"""Stored features of a window's documents as columns, the form that methods read."""

from collections.abc import Iterable, Sequence
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

    Args:
        documents: The documents; one or more.
        features: The features to return.
    """
    features = set(features)
    filled = {one for one in _FILLED & features if any(one in stored for stored in documents)}
    if filled and Feature.TOKENS in features:
        documents = [stored if filled <= stored.keys() else {**_empty(stored), **stored} for stored in documents]
    found: dict[str, Any] = {}
    for feature in features:
        if all(feature in stored for stored in documents):
            found[feature.value] = [stored[feature] for stored in documents]
    for feature in _ROWS & found.keys():
        found[feature.value] = _matrix(found[feature.value])
    if Feature.OFFSETS in found:
        found[Feature.OFFSETS] = [offsets for offsets, _ in found[Feature.OFFSETS]]
    return found


def partial_columns(documents: Sequence[Stored], features: Iterable[Feature]) -> dict[str, Any]:
    """Return a window's columns, and for each feature that some documents lack the mask of those that have it.

    A feature that no document has is left out. A document that lacks a feature has zeros or an empty value.
    """
    features = set(features)
    filled = _FILLED & features
    documents = [
        {**_empty(stored), **stored} if Feature.TOKENS in stored and not filled <= stored.keys() else stored
        for stored in documents
    ]
    found: dict[str, Any] = {}
    present: dict[Feature, NDArray[np.bool_]] = {}
    for feature in features:
        values: list[Any] = [stored.get(feature) for stored in documents]
        example = next((value for value in values if value is not None), None)
        if example is None:
            continue
        if any(value is None for value in values):
            nothing = _nothing_like(feature, example)
            present[feature] = np.array([value is not None for value in values], np.bool_)
            values = [nothing if value is None else value for value in values]
        if feature is Feature.OFFSETS:
            values = [offsets for offsets, _ in values]
        found[feature.value] = _matrix(values) if feature in _ROWS else values
    return {**found, "present": present}


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

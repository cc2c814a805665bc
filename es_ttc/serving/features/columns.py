"""The features and numeric fields of a window's documents as columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers.base import Feature
from es_ttc.rescorers.learned.fields import as_number
from es_ttc.serving.features.decoding import Stored
from es_ttc.vectors.chunks import no_chunks
from es_ttc.vectors.tokens import ScaleNorms, TokenVectors

_FILLED = frozenset({Feature.NORMS, Feature.OFFSETS})
_ROWS = frozenset({Feature.POOLED, Feature.REVERSED})
"""Features that are one vector a document, and one matrix a window."""


def columns(documents: Sequence[Stored], features: Iterable[Feature], *, partial: bool = False) -> dict[str, Any]:
    """Return a window's columns, by the names of :class:`es_ttc.rescorers.base.Window`.

    A document without norms gets empty ones, which the method computes, and one without offsets those of no text. A
    feature that another document lacks is left out. With ``partial`` such a document has zeros or an empty value, and
    ``present`` has the mask of those that have the feature; one that no document has is left out.
    """
    by_feature: dict[str, Any] = {}
    present: dict[Feature, NDArray[np.bool_]] = {}
    for feature in set(features):
        try:
            values: list[Any] = [stored[feature] for stored in documents]
        except KeyError:
            if not partial and not (feature in _FILLED and any(feature in stored for stored in documents)):
                continue
            values = [_value_or_empty(feature, stored) for stored in documents]
            example = next((value for value in values if value is not None), None)
            having = np.array([value is not None for value in values], np.bool_)
            if example is None or not (partial or having.all()):
                continue
            if not having.all():
                nothing = _nothing_like(feature, example)
                present[feature] = having
                values = [nothing if value is None else value for value in values]
        if feature is Feature.OFFSETS:
            values = [offsets for offsets, _ in values]
        by_feature[feature.value] = _matrix(values) if feature in _ROWS else values
    return {**by_feature, "present": present}


def numbers_of(hits: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return numeric fields of hits, ``(n,)`` by name: NaN where a hit has none, the least of several values.

    They are doc values in hits that the caller has found, so an alias's filter and the caller's rights hold for them.
    """
    return {name: np.array([_number_of(hit, name) for hit in hits], np.float64) for name in fields}


def _number_of(hit: Mapping[str, Any], name: str) -> float:
    values = (hit.get("fields") or {}).get(name)
    try:
        number = as_number(values)
    except ValueError:
        raise InvalidRequest(
            f"the method reads the numeric field [{name}], and the request asks for it in another form, {values}: "
            "leave out the [format] of the field, or read it from [_source]"
        ) from None
    return np.nan if number is None else number


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

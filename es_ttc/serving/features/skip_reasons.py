"""Reasons for which a document's features are not used: the window is then scored without the document."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import DocumentChunks
from es_ttc.vectors.tokens import TokenVectors

_MAX_ROWS = 65_536
_MAX_COMPONENT = 2.0
"""Components of unit vectors are at most 1, apart from rounding; much larger ones make sums that are not finite."""


class SkipReason(StrEnum):
    """Why a document's features are not used; the values are part of responses and metrics."""

    MARKS = "marks"
    """The document has several content hashes or encoder names."""
    ENCODER = "encoder"
    """The features are of another encoder than the window's."""
    LAYOUT = "layout"
    """This release does not know the layout, or a plugin cannot send it."""
    CODEBOOK = "codebook"
    """The codebook is not in the index's mapping."""
    DAMAGED = "damaged"
    """The stored bytes cannot be decoded."""
    DIMENSIONS = "dimensions"
    """The vectors do not have the encoder's dimensions, or are too many."""
    VALUES = "values"
    """The vectors are not unit vectors: a component is too large."""


def summary(faults: Iterable[SkipReason]) -> dict[str, Any]:
    """Return the part of a response's summary about skipped documents."""
    reasons: dict[str, int] = {}
    for fault in faults:
        reasons[fault.value] = reasons.get(fault.value, 0) + 1
    return {"count": sum(reasons.values()), "reasons": dict(sorted(reasons.items()))}


def fault_in(feature: Feature, value: Any, dims: int | None) -> SkipReason | None:
    """Return why a decoded feature cannot be used, or None."""
    if feature is Feature.TOKENS:
        return _of_tokens(value, dims)
    if feature is Feature.POOLED or feature is Feature.REVERSED:
        return _of_rows(value[np.newaxis], dims)
    if feature is Feature.CHUNKS:
        return _of_chunks(value, dims)
    return None


def consistent(stored: Mapping[Feature, Any]) -> dict[Feature, Any]:
    """Return a document's features without norms and offsets that do not have the length of its token vectors."""
    tokens = stored.get(Feature.TOKENS)
    kept = dict(stored)
    if tokens is None:
        return kept
    norms, offsets = kept.get(Feature.NORMS), kept.get(Feature.OFFSETS)
    if norms is not None and norms.values.shape[1] != len(tokens):
        del kept[Feature.NORMS]
    if offsets is not None and len(offsets[0]) != len(tokens):
        del kept[Feature.OFFSETS]
    return kept


def _of_chunks(chunks: DocumentChunks, dims: int | None) -> SkipReason | None:
    faults = (_of_tokens(vectors, dims) for vectors in (chunks.topic, *chunks.vectors.values()))
    return next(filter(None, faults), None)


def _of_tokens(tokens: TokenVectors, dims: int | None) -> SkipReason | None:
    if len(tokens) > _MAX_ROWS:
        return SkipReason.DIMENSIONS
    if tokens.scales is None:
        return _of_rows(tokens.values, dims)
    if dims is not None and tokens.dims != dims:
        return SkipReason.DIMENSIONS
    if 127 * float(np.abs(tokens.scales).max(initial=0)) <= _MAX_COMPONENT:
        return None
    maxima = np.abs(tokens.values.astype(np.int16)).max(axis=1, initial=0) * np.abs(tokens.scales)
    return SkipReason.VALUES if float(maxima.max(initial=0)) > _MAX_COMPONENT else None


def _of_rows(rows: NDArray[Any], dims: int | None) -> SkipReason | None:
    if dims is not None and rows.shape[1] != dims:
        return SkipReason.DIMENSIONS
    if rows.dtype == np.float16:  # compared as integers without the sign, which is many times faster
        bits = int(np.max(rows.view(np.uint16) & np.uint16(0x7FFF), initial=0))
        return SkipReason.VALUES if bits > int(np.float16(_MAX_COMPONENT).view(np.uint16)) else None
    maximum = max(float(rows.max(initial=0)), -float(rows.min(initial=0)))
    return None if maximum <= _MAX_COMPONENT else SkipReason.VALUES

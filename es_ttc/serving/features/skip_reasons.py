"""What may be wrong with one document's features: it has none then, and its window is scored without it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.base import Feature
from es_ttc.vectors.chunks import DocumentChunks
from es_ttc.vectors.tokens import TokenVectors

_MOST_ROWS = 65_536
_GREATEST = 2.0
"""Components of unit rows are at most 1; beyond rounding, such a number makes sums that are not finite."""


class SkipReason(StrEnum):
    """Why a document's features are not used; a value stands in responses and in metrics."""

    MARKS = "marks"
    """Its content hash or its encoder's name is not one value."""
    ENCODER = "encoder"
    """They are of another encoder than its index's."""
    LAYOUT = "layout"
    """This release does not know how they are stored, or they cannot be sent along."""
    CODEBOOK = "codebook"
    """The codebook that they name is not in the index's mapping."""
    DAMAGED = "damaged"
    """What is stored cannot be read."""
    DIMENSIONS = "dimensions"
    """Their vectors have other dimensions than the encoder's, or are too many."""
    VALUES = "values"
    """Their vectors are not unit vectors: they hold greater numbers."""


def summary(faults: Iterable[SkipReason]) -> dict[str, Any]:
    """Return how a response tells of documents that were passed over."""
    reasons: dict[str, int] = {}
    for fault in faults:
        reasons[fault.value] = reasons.get(fault.value, 0) + 1
    return {"count": sum(reasons.values()), "reasons": dict(sorted(reasons.items()))}


def fault_in(feature: Feature, value: Any, dims: int | None) -> SkipReason | None:
    """Return what is wrong with a feature that could be unpacked, or None.

    Args:
        feature: Which one.
        value: As rescorers take it.
        dims: Components of the encoder's vectors; None where that is not known.
    """
    if feature is Feature.TOKENS:
        return _of_tokens(value, dims)
    if feature is Feature.POOLED:
        return _of_rows(value[np.newaxis], dims)
    if feature is Feature.CHUNKS:
        return _of_chunks(value, dims)
    return None


def consistent(stored: Mapping[Feature, Any]) -> dict[Feature, Any]:
    """Leave out what does not fit a document's token vectors: norms and offsets of another length."""
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
    if len(tokens) > _MOST_ROWS:
        return SkipReason.DIMENSIONS
    if tokens.scales is None:
        return _of_rows(tokens.values, dims)
    if dims is not None and tokens.dims != dims:
        return SkipReason.DIMENSIONS
    if 127 * float(np.abs(tokens.scales).max(initial=0)) <= _GREATEST:
        return None
    greatest = np.abs(tokens.values.astype(np.int16)).max(axis=1, initial=0) * np.abs(tokens.scales)
    return SkipReason.VALUES if float(greatest.max(initial=0)) > _GREATEST else None


def _of_rows(rows: NDArray[Any], dims: int | None) -> SkipReason | None:
    if dims is not None and rows.shape[1] != dims:
        return SkipReason.DIMENSIONS
    if rows.dtype == np.float16:  # as integers without the sign, which is many times faster and keeps their order
        bits = int(np.max(rows.view(np.uint16) & np.uint16(0x7FFF), initial=0))
        return SkipReason.VALUES if bits > int(np.float16(_GREATEST).view(np.uint16)) else None
    greatest = max(float(rows.max(initial=0)), -float(rows.min(initial=0)))
    return None if greatest <= _GREATEST else SkipReason.VALUES

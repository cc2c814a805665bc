"""Why a document's features are not used: a window is scored without such documents."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any


class SkipReason(StrEnum):
    """Why a document's features are not used; the values are part of responses and metrics."""

    MARKS = "marks"
    """The document has several content hashes or encoder names."""
    ENCODER = "encoder"
    """The features are of another encoder than the window's."""
    LAYOUT = "layout"
    """This release does not read the layout, or a plugin cannot send it."""
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

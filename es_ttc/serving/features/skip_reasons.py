"""Why a document's features are not used, and why a window has none: it is scored without such documents."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.index.mappings.spec import REVERSED


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


class NoFeatures(EsTtcError):
    """No document of the window has usable features: they are pending, skipped, or have no text."""

    status = 503
    type = "ttc_pending_features_exception"

    def __init__(self, reason: str, skipped: Mapping[int, SkipReason] | None = None) -> None:
        super().__init__(reason)
        self.skipped = skipped or {}


def no_features(skipped: Mapping[int, SkipReason]) -> NoFeatures:
    """Return the error for a window without usable features."""
    if not skipped:
        return NoFeatures("no document of the window has features yet: they are pending, changed, or have no text")
    if SkipReason.LAYOUT in skipped.values():
        fix = "make the index, or what is attached to it, anew"
    else:
        fix = "ingest or fill them again"
    reasons = ", ".join(f"{reason} {count}" for reason, count in summary(skipped.values())["reasons"].items())
    return NoFeatures(
        f"no document of the window has features that can be used: {len(skipped)} were skipped ({reasons}): {fix}",
        skipped,
    )


def lacks_reversed(method: str, indices: Sequence[str], *, attached: bool) -> MissingFeature:
    """Return the error for indices without documents as queries, which the method reads."""
    first = indices[0]
    fix = (
        f"add them with `es-ttc attach {first} --chunks`"
        if attached
        else "make the index anew with `es-ttc index create --chunks` and `es-ttc ingest`"
    )
    return MissingFeature(
        f"method [{method}] compares the query with documents encoded as queries too, and index "
        f"[{', '.join(indices)}] has none (no [{REVERSED}]): {fix}"
    )

"""Errors for windows without the features that a method reads, each with the command that adds them."""

from collections.abc import Collection, Mapping, Sequence

from es_ttc.errors import EsTtcError, MissingFeature
from es_ttc.index.mappings.spec import CHUNKS, REVERSED, SPANS
from es_ttc.serving.features import skip_reasons
from es_ttc.serving.features.skip_reasons import SkipReason


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
    reasons = ", ".join(
        f"{reason} {count}" for reason, count in skip_reasons.summary(skipped.values())["reasons"].items()
    )
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


def no_features_of(method: str, unmapped: Collection[str], indices: Sequence[str], *, attached: bool) -> EsTtcError:
    """Return the error for a window of some indices in which a method finds no features; they lack fields, or none."""
    if not unmapped:
        return no_features({})
    if set(unmapped) == {REVERSED}:
        return lacks_reversed(method, indices, attached=attached)
    return lacks_fields(f"method [{method}]", unmapped, ", ".join(indices))


def lacks_fields(reader: str, fields: Collection[str], index: str) -> MissingFeature:
    """Return the error for an index without fields that ``reader`` needs."""
    return MissingFeature(
        f"{reader} needs [{', '.join(sorted(fields))}], which index [{index}] does not have: {how_to_add(fields)}"
    )


def how_to_add(fields: Collection[str]) -> str:
    """Return the part of an error that says how fields below ``ttc`` are added."""
    flags = {CHUNKS: " --chunks", REVERSED: " --chunks", SPANS: " --spans"}
    flag = "".join(dict.fromkeys(flags[name] for name in sorted(fields) if name in flags))
    return (
        f"add it with `es-ttc attach{flag}`, or make an index that has it with `es-ttc index create{flag}` and "
        "`es-ttc ingest`"
    )

"""Classify the errors of a bulk: the action may succeed later, it never will, or no action would."""

from enum import Enum

from es_ttc.engine.protocol import BulkItem
from es_ttc.errors import EngineError, EngineUnavailable

_NO_RIGHT_OR_NO_INDEX = (401, 403, 404)
_FIRST_SERVER_ERROR = 500
_FLOOD_STAGE = ("read-only-allow-delete", "read-only / allow delete", "TOO_MANY_REQUESTS", "SERVICE_UNAVAILABLE")
"""Blocks that the engine sets and removes by itself, whatever status it returns."""

_SHARD_ON_ITS_WAY = frozenset(
    {
        "illegal_index_shard_state_exception",
        "index_shard_closed_exception",
        "index_shard_not_started_exception",
        "index_shard_recovering_exception",
        "no_shard_available_action_exception",
        "shard_not_found_exception",
    }
)
"""Returned with 404 until the shard has started."""

_CLOSED = frozenset({"index_closed_exception"})  # returned with 400, although no document is the cause

_CAUSED_BY_THE_DOCUMENT = frozenset(
    {
        "arithmetic_exception",
        "array_index_out_of_bounds_exception",
        "class_cast_exception",
        "index_out_of_bounds_exception",
        "null_pointer_exception",
        "number_format_exception",
        "string_index_out_of_bounds_exception",
    }
)
"""Returned with 500, at every attempt with the same document."""


class BulkErrorKind(Enum):
    """The meaning of an item's error for the writer."""

    NONE = "written"
    TEMPORARY = "the same action may succeed later"
    PERMANENT = "this action never succeeds"
    ALL = "no action on this index would succeed"


def refusal_of(item: BulkItem) -> BulkErrorKind:
    """Return the kind of one item's error."""
    if item.ok:
        return BulkErrorKind.NONE
    kind = item.error_type
    if kind in _SHARD_ON_ITS_WAY or (kind == "cluster_block_exception" and _is_flood_stage(item.error or "")):
        return BulkErrorKind.TEMPORARY
    if kind in _CLOSED:
        return BulkErrorKind.ALL
    if item.status in _NO_RIGHT_OR_NO_INDEX:
        gone = item.status == 404 and kind == "document_missing_exception"
        return BulkErrorKind.PERMANENT if gone else BulkErrorKind.ALL
    if is_temporary_status(item.status) and kind not in _CAUSED_BY_THE_DOCUMENT:
        return BulkErrorKind.TEMPORARY
    return BulkErrorKind.PERMANENT


def is_temporary(error: EngineError) -> bool:
    """Return whether a bulk that failed as a whole may succeed later."""
    if isinstance(error, EngineUnavailable) or _is_flood_stage(str(error)):
        return True
    return error.upstream_status is not None and is_temporary_status(error.upstream_status)


def is_temporary_status(status: int) -> bool:
    """Return whether a status comes from the engine's state (429, 5xx: busy, disk full), not from the request."""
    return status == 429 or status >= _FIRST_SERVER_ERROR


def _is_flood_stage(reason: str) -> bool:
    return "cluster_block_exception" in reason and any(sign in reason for sign in _FLOOD_STAGE)

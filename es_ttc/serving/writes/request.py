"""Which requests write documents."""

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from es_ttc.serving.http.raw_request import RawRequest

NO_PIPELINE = "_none"

_JSON = frozenset({"application/json", "application/vnd.elasticsearch+json"})
_LINES = _JSON | {"application/x-ndjson", "application/vnd.elasticsearch+x-ndjson"}
_METHODS = frozenset({"PUT", "POST"})
_ONE_DOCUMENT = frozenset({"_doc", "_create", "_update"})
_CHANGES = frozenset({"_aliases", "_rollover", "_restore"})
"""APIs by POST after which a name may stand for another index."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request that writes documents.

    Attributes:
        api: ``_bulk``, ``_doc``, ``_create`` or ``_update``.
        index: The name in its path; None for a `_bulk` without one.
    """

    api: str
    index: str | None


def write_in(incoming: RawRequest) -> WriteRequest | None:
    """Return what a request writes; None if it writes no documents."""
    if incoming.method not in _METHODS:
        return None
    match incoming.segments:
        case ["_bulk"]:
            return WriteRequest("_bulk", None)
        case [index, "_bulk"]:
            return WriteRequest("_bulk", unquote(index))
        case [index, ("_doc" | "_create" | "_update") as api, _]:
            return WriteRequest(api, unquote(index))
        case [index, "_doc"]:
            return WriteRequest("_doc", unquote(index))
        case _:
            return None


def may_change_indices(incoming: RawRequest) -> bool:
    """Return whether a request that writes no documents may create, change or delete indices or pipelines."""
    if incoming.method == "DELETE":
        return not _ONE_DOCUMENT.intersection(incoming.segments[1:2])
    if incoming.method == "POST":
        return not _CHANGES.isdisjoint(incoming.segments)
    return incoming.method == "PUT"


def pipeline_of(incoming: RawRequest) -> str | None:
    """Return the ingest pipeline that a request's parameters name."""
    return _parameter(incoming, "pipeline")


def refreshes(incoming: RawRequest) -> bool:
    """Return whether the next search is to find what a request writes."""
    return _parameter(incoming, "refresh") in ("", "true", "wait_for")


def _parameter(incoming: RawRequest, wanted: str) -> str | None:
    if wanted.encode() not in incoming.query_string:
        return None
    params = parse_qsl(incoming.query_string.decode("latin-1"), keep_blank_values=True)
    return next((value for name, value in params if name == wanted), None)


def is_json(incoming: RawRequest, api: str) -> bool:
    """Return whether a request's body is JSON in UTF-8, or lines of it for a `_bulk`."""
    media, _, parameters = incoming.header(b"content-type").lower().partition(";")
    known = _LINES if api == "_bulk" else _JSON
    return media.strip() in known and ("charset" not in parameters or "utf-8" in parameters)

"""The caller's response: errors of single searches, `filter_path`, the header `x-ttc-applied`, summaries."""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from starlette.types import Send

from es_ttc.errors import EngineError, EsTtcError
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.filter_path import with_filter_path
from es_ttc.serving.http.raw_request import RawRequest, end_answer, start_answer
from es_ttc.serving.pool import Offload
from es_ttc.serving.request.section import KEY
from es_ttc.serving.summary import Summary

GZIP = (b"content-encoding", b"gzip")
_LEVEL = 3  # the engines' own
_MIN_COMPRESSED = 1024  # bytes
_PART = 2**18


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, for metrics and logs."""

    kind: str
    status: int
    applied: bool = True


def response_json(response: dict[str, Any], filter_path: str, *, pretty: bool, keep_empty: bool) -> bytes:
    """Return a response as JSON."""
    body = with_filter_path(response, filter_path, keep_empty=keep_empty) if filter_path else response
    return jsonio.dumps(body, pretty=pretty)


def takes_gzip(incoming: RawRequest, body: bytes) -> bool:
    """Return whether a body is sent with gzip: the client asks for it, and it is long enough.

    As in the engines by default, nothing is compressed over TLS, where the length of a response tells of its contents.
    """
    asked = incoming.header(b"accept-encoding").lower().replace(" ", "").split(",")
    accepted = any(one == "gzip" or (one.startswith("gzip;q=") and one[7:].strip("0.")) for one in asked)
    return accepted and len(body) >= _MIN_COMPRESSED and not incoming.is_tls


def compressed(body: bytes) -> bytes:
    """Return a body with gzip."""
    return gzip.compress(body, _LEVEL, mtime=0)


def with_mark(headers: RawHeaders, *, applied: bool) -> RawHeaders:
    """Return headers with `x-ttc-applied`: whether every method was applied."""
    return [*headers, (b"x-ttc-applied", b"true" if applied else b"false")]


async def respond(incoming: RawRequest, send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send a whole answer, a long one in parts, so that the rest is not copied while the client reads."""
    await start_answer(send, status, [*headers, (b"content-length", str(len(body)).encode())])
    rest = memoryview(body)
    while len(rest) > _PART:
        await send({"type": "http.response.body", "body": rest[:_PART], "more_body": True})
        rest = rest[_PART:]
    await end_answer(incoming, send, bytes(rest))


async def respond_as_asked(
    incoming: RawRequest, send: Send, headers: RawHeaders, body: bytes, offload: Offload
) -> None:
    """Send a successful answer, with gzip if the client asks for it."""
    if takes_gzip(incoming, body):
        body, headers = await offload.run(len(body), compressed, body), [*headers, GZIP]
    await respond(incoming, send, 200, headers, body)


def is_refusal(error: EsTtcError) -> TypeGuard[EngineError]:
    """Return whether an error is an answer of the engine with a status of 4xx, such as a missing index."""
    if not isinstance(error, EngineError) or not isinstance(error.upstream, dict):
        return False
    return 400 <= (error.upstream_status or 0) < 500


def item_error(error: EsTtcError) -> Any:
    """Return the response to a search of an `_msearch` that cannot be answered."""
    return error.upstream if is_refusal(error) else error.body()


def add_summary(response: dict[str, Any], hook: str, summaries: Sequence[Summary], ms: float) -> None:
    """Add the summaries of a hook's clauses to a response; if another stage has added one, below the hook's name."""
    shown = [summary.as_dict() for summary in summaries]
    summary: dict[str, Any] = shown[0] if len(shown) == 1 else {hook: shown}
    if KEY in response:
        summary = {**response[KEY], hook: summary.get(hook, summary)}
    response[KEY] = summary
    add_took(response, ms)


def add_method_to_hits(response: Mapping[str, Any], *, applied: bool) -> None:
    """Add to each hit's details the method and whether all were applied, or why not: many clients keep only hits."""
    summary = response[KEY]
    hooks = (summary.get(hook, []) for hook in ("knn", "query"))
    summaries = [summary, *(one for given in hooks for one in (given if isinstance(given, list) else [given]))]
    failed = next((one for one in summaries if not one.get("applied", True)), summary)
    parts = {"method": summary.get("method"), "applied": applied, "reason": failed.get("reason")}
    details = {name: value for name, value in parts.items() if value is not None}
    for hit in response["hits"]["hits"]:
        hit["_ttc"] = {**details, **hit.get("_ttc", {})}


def add_took(response: dict[str, Any], ms: float) -> None:
    """Add the gateway's own time to that of a search."""
    if isinstance(response.get("took"), int):
        response["took"] += round(ms)


def shortest(score: np.float32) -> float:
    """Return a score as the engines print a float32: the shortest decimal number that rounds to it."""
    return float(str(score))


def with_field_name(detail: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return details with the name of a text field in place of its ordinal."""
    ordinal = detail.get("field")
    if isinstance(ordinal, int) and 0 <= ordinal < len(fields):
        return {**detail, "field": fields[ordinal]}
    return detail

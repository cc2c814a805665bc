"""Answers writes: documents of followed indices are sent with features, all else is forwarded unchanged.

The engine's answer is the client's, byte for byte. A write is never refused or lost because of its encoding: whatever
fails, it is sent as it came, the index's pipeline stamps it as pending, and a worker encodes it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, unquote_plus

from starlette.types import Send

from es_ttc.errors import EngineError, InvalidRequest, RequestTooLarge
from es_ttc.index.attach.feature_locations import FeatureLocation
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.limits import decompressed, inflated
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.signing import changeable
from es_ttc.serving.http.upstream import Data
from es_ttc.serving.request.response import Outcome, rendered
from es_ttc.serving.writes.afterwards import HeldResponse, LaterEncoding, Locations
from es_ttc.serving.writes.bulk import MAX_DOCUMENT_BYTES, BulkBody, IndexNames
from es_ttc.serving.writes.encoding import Allowance, EncodingBatches, Pending
from es_ttc.serving.writes.followed_indices import FollowedIndex, FollowedIndices, PipelineIndex

_JSON = frozenset({"application/json", "application/vnd.elasticsearch+json"})
_LINES = _JSON | {"application/x-ndjson", "application/vnd.elasticsearch+x-ndjson"}
_METHODS = frozenset({"PUT", "POST"})
_ONE_DOCUMENT = frozenset({"_doc", "_create", "_update"})
_CHANGES = frozenset({"_aliases", "_rollover", "_restore"})
"""APIs by POST after which a name may stand for another index."""
_LIMITS = b"/_nodes/http"
_LIMITS_ONLY = b"filter_path=nodes.*.http.max_content_length_in_bytes"
_DEFAULT_LIMIT = 100 * 2**20
"""The default of both engines."""
_LIMIT_SHARE = 0.95
_LIMIT_SECONDS = 600.0
_LIMIT_TIMEOUT = 2.0
_KIND = "write"
_MAX_IN_MEMORY = 16 * 2**20
"""Maximum size of a `_bulk` whose length is not known from its headers: compressed, or in chunks."""
_SHORT_BYTES = 64 * 1024
MAX_ADDED_BYTES = 32 * 2**20
"""Maximum size of the features that are added to one write; its other documents are written as pending."""
_NOT_ALLOWED = frozenset({401, 403})
_ASKED_AT_ONCE = 16
"""Maximum number of names of one request that the engine is asked about at a time."""

Locate = Callable[[], Awaitable[Locations]]
T = TypeVar("T")


def write_in(incoming: RawRequest) -> tuple[str, str | None] | None:
    """Return the API and the name in the path of a request that writes documents; None if it writes none."""
    if incoming.method not in _METHODS:
        return None
    match incoming.segments:
        case ["_bulk"]:
            return "_bulk", None
        case [index, "_bulk"]:
            return "_bulk", unquote(index)
        case [index, ("_doc" | "_create" | "_update") as api, _]:
            return api, unquote(index)
        case [index, "_doc"]:
            return "_doc", unquote(index)
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


def _parameter(incoming: RawRequest, wanted: str) -> str | None:
    if wanted.encode() not in incoming.query_string:
        return None
    return next((value for name, value in _parameters(incoming) if name == wanted), None)


def _parameters(incoming: RawRequest) -> list[tuple[str, str]]:
    return parse_qsl(incoming.query_string.decode("latin-1"), keep_blank_values=True)


def _without(query_string: bytes, unwanted: str) -> bytes:
    pairs = query_string.decode("latin-1").split("&")
    return "&".join(pair for pair in pairs if unquote_plus(pair.partition("=")[0]) != unwanted).encode("latin-1")


def is_json(incoming: RawRequest, api: str) -> bool:
    """Return whether a request's body is JSON in UTF-8, or lines of it for a `_bulk`."""
    media, _, parameters = incoming.header(b"content-type").lower().partition(";")
    known = _LINES if api == "_bulk" else _JSON
    return media.strip() in known and ("charset" not in parameters or "utf-8" in parameters)


class BodyLimit:
    """Reads ``http.max_content_length`` of the engine's nodes, if the gateway's own account may."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._bytes = _DEFAULT_LIMIT
        self._next_read = 0.0

    async def bytes(self) -> int:
        """Return the number of bytes that a body may have, with some room."""
        if time.monotonic() >= self._next_read:
            self._next_read = time.monotonic() + _LIMIT_SECONDS
            try:
                async with asyncio.timeout(_LIMIT_TIMEOUT):
                    answer = await self._engine.as_gateway().json("GET", _LIMITS, _LIMITS_ONLY, failing="limits")
                self._bytes = min(node["http"]["max_content_length_in_bytes"] for node in answer["nodes"].values())
            except (EngineError, TimeoutError, ValueError, LookupError, TypeError):
                pass
        return int(self._bytes * _LIMIT_SHARE)


class WriteEncoding:
    """Answers requests that are no searches."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._indices = FollowedIndices(gateway.engine)
        self._batches = EncodingBatches(gateway)
        self._later = LaterEncoding(gateway)
        self._limit = BodyLimit(gateway.engine)
        self._seconds = gateway.settings.write_timeout_ms / 1000
        gateway.metrics.watch({"outstanding_documents": lambda: self._batches.outstanding})

    async def answer(self, incoming: RawRequest, send: Send) -> Outcome:
        """Answer one request."""
        write = write_in(incoming)
        if write is None or not changeable(incoming.headers, self._gateway.upstream.signer):
            return await self._passed(incoming, send)
        api, name = write
        if api == "_bulk":
            return await self._answer_bulk(incoming, name, send)
        known = await self._indices.of(name or "", incoming.headers)
        index = known if isinstance(known, FollowedIndex) else None
        on_its_way = index is not None and api != "_update"
        locate = partial(self._later.of, name or "")
        if not on_its_way and await locate():
            return await self._answer_and_encode(incoming, send, locate, await self._allowance(incoming, 0))
        if index is not None:
            return await self._answer_document(incoming, api, index, send)
        return await self._passed(incoming, send)

    async def _passed(self, incoming: RawRequest, send: Send) -> Outcome:
        status = 0
        try:
            status = await self._gateway.upstream.forward(incoming, send)
        finally:
            if status < 400 and may_change_indices(incoming):  # an unknown end counts as a change
                self._indices.forget()
                self._later.forget()
        return Outcome("passthrough", status)

    async def _answer_and_encode(
        self,
        incoming: RawRequest,
        send: Send,
        locate: Locate,
        allowance: Allowance,
        *,
        body: Data = None,
        rewritten: Data = None,
    ) -> Outcome:
        """Forward a write, and encode what the engine's response names before it is sent on.

        `locate` is asked again when the whole body was read, which may have named more indices. `filter_path` is
        applied here, so that the engine's response names the documents.
        """
        held, offload = HeldResponse(send), self._gateway.offload
        filter_path = _parameter(incoming, "filter_path") if await locate() else None
        if filter_path:
            incoming.query_string = _without(incoming.query_string, "filter_path")
        refresh = _parameter(incoming, "refresh") in ("", "true", "wait_for")
        locations: Locations = {}
        try:
            status = await self._gateway.upstream.forward(incoming, held, body=body, rewritten=rewritten)
            allowance.complete |= not isinstance(rewritten, AsyncIterator)
            locations = await locate() if status < 400 else {}
            answer = await offload.run(held.size, held.decoded) if locations or filter_path else None
            if locations:
                encoded, pending = await self._later.encode(answer, locations, self._seconds, refresh=refresh)
                allowance.count(encoded, Pending.LEFT, pending)
        finally:
            self._gateway.metrics.written(allowance.encoded, allowance.pending)
        if filter_path and isinstance(answer, dict):
            pretty, keep_empty = jsonio.is_pretty(dict(_parameters(incoming))), self._gateway.upstream.is_elasticsearch
            filtered = partial(rendered, answer, filter_path, pretty=pretty, keep_empty=keep_empty)
            await offload.run(held.size, held.replace, filtered)
        await held.release(_mark(allowance, status))
        if rewritten is None and not locations:
            return Outcome("passthrough", status)
        return Outcome(_KIND, status, bool(allowance.encoded) and allowance.all_encoded)

    async def _located(self, names: Iterable[str], headers: RawHeaders, *, on_their_way: bool) -> Locations:
        """Return the indices behind names whose documents are encoded after their write.

        These are all whose documents are encoded now, without those that are encoded `on_their_way`.
        """

        async def locations_of(name: str) -> Locations:
            followed = on_their_way and isinstance(await self._indices.of(name, headers), FollowedIndex)
            return {} if followed else await self._later.of(name)

        located: dict[str, FeatureLocation] = {}
        for found in await _of_each(names, locations_of):
            located.update(found)
        return located

    async def _answer_document(self, incoming: RawRequest, api: str, index: FollowedIndex, send: Send) -> Outcome:
        """Answer a request that writes one document to a followed index."""
        complete = await incoming.read_ahead(MAX_DOCUMENT_BYTES)
        readable = is_json(incoming, api) and complete
        document = await self._plain(incoming, MAX_DOCUMENT_BYTES) if readable else None
        allowance = await self._allowance(incoming, len(document or b""))
        if document is None:
            allowance.pending[Pending.SIZE if not complete else Pending.FORMAT] += 1
            return await self._sent(incoming, allowance, None, send)
        operation = "index" if api == "_doc" else api.removeprefix("_")
        submitted = allowance.submit(index, operation, None, document)
        if submitted is None:
            return await self._sent(incoming, allowance, None, send)
        try:
            result = await allowance.result(submitted)
        finally:
            allowance.release(submitted)
        outcome = await self._sent(incoming, allowance, None if result is document else result, send)
        if outcome.status in _NOT_ALLOWED:
            self._indices.refused(index.name, incoming.headers)
        return outcome

    async def _answer_bulk(self, incoming: RawRequest, path_index: str | None, send: Send) -> Outcome:
        async def follow(name: str) -> PipelineIndex | None:
            return await self._indices.of(name, incoming.headers)

        names = IndexNames(path_index, _beginning(incoming))
        known = [index for index in await _of_each(names, follow) if index is not None]
        followed = any(isinstance(index, FollowedIndex) for index in known)
        isolating = bool(known) and await self._gateway.upstream.product() == "opensearch"
        changed = (followed or isolating) and is_json(incoming, "_bulk")
        size, chunks = await self._body(incoming) if changed else (0, None)
        allowance = await self._allowance(incoming, size)
        body: Data = None
        rewritten: Data = None
        if chunks is not None:
            offload = self._gateway.offload if isolating else None
            rewritten = BulkBody(path_index, follow, allowance, offload).rewritten(names.watched(chunks))
            if size <= _SHORT_BYTES:
                # Engines, too, handle a short body in one piece and a long one in parts, with different messages.
                rewritten = b"".join([part async for part in rewritten])
        elif incoming.whole_body is None and self._gateway.upstream.signer is None:
            body = names.watched(incoming.chunks())
        locate = partial(self._located, names, incoming.headers, on_their_way=rewritten is not None)
        if isinstance(rewritten, AsyncIterator) or body is not None or await locate():
            return await self._answer_and_encode(incoming, send, locate, allowance, body=body, rewritten=rewritten)
        if rewritten is not None:
            return await self._sent(incoming, allowance, rewritten, send)
        return await self._passed(incoming, send)

    async def _body(self, incoming: RawRequest) -> tuple[int, AsyncIterator[bytes] | None]:
        """Return the size of a `_bulk` body and its parts; no parts if it is left to the engine.

        Features must not make a body longer than the engine accepts, so its size must be known.
        """
        length, encoding = incoming.header(b"content-length"), incoming.header(b"content-encoding")
        if length.isdecimal() and not encoding:
            whole = incoming.whole_body
            return int(length), incoming.chunks() if whole is None else _once(whole)
        if not await incoming.read_ahead(_MAX_IN_MEMORY):
            return 0, None
        body = await self._plain(incoming, _MAX_IN_MEMORY)
        return (0, None) if body is None else (len(body), _once(body))

    async def _plain(self, incoming: RawRequest, limit: int) -> bytes | None:
        """Return a body that was read completely, decompressed; None if it is left to the engine."""
        body, encoding = incoming.whole_body or b"", incoming.header(b"content-encoding")
        try:
            plain = await self._gateway.offload.run(limit if encoding else 0, decompressed, body, encoding, limit)
        except (InvalidRequest, RequestTooLarge):
            return None
        if plain is not None and plain is not body:
            incoming.count(len(plain))
        return plain

    async def _allowance(self, incoming: RawRequest, size: int) -> Allowance:
        added = min(MAX_ADDED_BYTES, await self._limit.bytes() - size)
        return Allowance(self._batches, pipeline_of(incoming), self._seconds, added)

    async def _sent(self, incoming: RawRequest, allowance: Allowance, body: bytes | None, send: Send) -> Outcome:
        """Send a request with another body, or as it came, and return its outcome."""
        allowance.complete = True
        mark = partial(_mark, allowance)
        try:
            status = await self._gateway.upstream.forward(incoming, send, rewritten=body, mark=mark)
        finally:
            self._gateway.metrics.written(allowance.encoded, allowance.pending)
        return Outcome(_KIND, status, allowance.all_encoded)


def _mark(allowance: Allowance, status: int) -> RawHeaders:
    """Return the header that says whether all documents have their features; what was refused is not in the index."""
    if not (allowance.encoded or allowance.pending) or status >= 400:
        return []
    return [(b"x-ttc-encoded", b"true" if allowance.all_encoded else b"false")]


async def _of_each(names: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
    """Ask for each name, for some at a time."""
    room = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def asked(name: str) -> T:
        async with room:
            return await ask(name)

    return await asyncio.gather(*map(asked, names))


def _beginning(incoming: RawRequest) -> bytes:
    """Return the part of a body that was read so far, decompressed as far as it goes."""
    beginning, encoding = incoming.beginning, incoming.header(b"content-encoding").strip().lower()
    if encoding not in ("gzip", "x-gzip"):
        return beginning
    text = bytearray()
    with suppress(InvalidRequest):
        for piece in inflated(beginning):
            text += piece
            if len(text) >= MAX_DOCUMENT_BYTES:
                break
    return bytes(text)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in parts of a size that the event loop handles in little time."""
    for start in range(0, len(body), _SHORT_BYTES):
        yield body[start : start + _SHORT_BYTES]

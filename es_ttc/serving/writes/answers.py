"""Answers writes: documents of followed indices are sent with features, all else is forwarded unchanged.

The engine's answer is the client's, byte for byte. A write is never refused or lost because of its encoding: whatever
fails, it is sent as it came, the index's pipeline stamps it as pending, and a worker encodes it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl, unquote, unquote_plus

from starlette.types import Send

from es_ttc.errors import EngineError, InvalidRequest, RequestTooLarge
from es_ttc.serving.engine import EngineClient
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.limits import decompressed, inflated
from es_ttc.serving.http.raw_request import RawRequest
from es_ttc.serving.http.signing import changeable
from es_ttc.serving.http.upstream import Data
from es_ttc.serving.request.response import Outcome, rendered
from es_ttc.serving.writes.bulk import MAX_DOCUMENT_BYTES, BulkBody, IndexNames
from es_ttc.serving.writes.encoding import EncodingBatches, EncodingBudget, NotEncodedReason
from es_ttc.serving.writes.post_write import BufferedResponse, PostWriteEncoder
from es_ttc.serving.writes.targets import InlineIndex, Locations, WriteTarget, WriteTargets

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
        self._targets = WriteTargets(gateway.engine)
        self._batches = EncodingBatches(gateway)
        self._post_write = PostWriteEncoder(gateway)
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
        target = await self._targets.of(name or "", incoming.headers, inline=api != "_update")
        if target.post_write:
            locate = partial(self._located, [name or ""], incoming.headers, inline=False)
            return await self._answer_and_encode(incoming, send, locate, await self._budget(incoming, 0))
        if target.inline is not None:
            return await self._answer_document(incoming, api, target.inline, send)
        return await self._passed(incoming, send)

    async def _passed(self, incoming: RawRequest, send: Send) -> Outcome:
        status = 0
        try:
            status = await self._gateway.upstream.forward(incoming, send)
        finally:
            if status < 400 and may_change_indices(incoming):  # an unknown end counts as a change
                self._targets.forget()
        return Outcome("passthrough", status)

    async def _answer_and_encode(
        self,
        incoming: RawRequest,
        send: Send,
        locate: Locate,
        budget: EncodingBudget,
        *,
        body: Data = None,
        rewritten: Data = None,
    ) -> Outcome:
        """Forward a write, and encode what the engine's response names before it is sent on.

        `locate` is asked again when the whole body was read, which may have named more indices. `filter_path` is
        applied here, so that the engine's response names the documents.
        """
        buffered, offload = BufferedResponse(send), self._gateway.offload
        filter_path = _parameter(incoming, "filter_path") if await locate() else None
        if filter_path:
            incoming.query_string = _without(incoming.query_string, "filter_path")
        refresh = _parameter(incoming, "refresh") in ("", "true", "wait_for")
        locations: Locations = {}
        try:
            status = await self._gateway.upstream.forward(incoming, buffered, body=body, rewritten=rewritten)
            budget.complete |= not isinstance(rewritten, AsyncIterator)
            locations = await locate() if status < 400 else {}
            answer = await offload.run(buffered.size, buffered.decoded) if locations or filter_path else None
            if locations:
                encoded, pending = await self._post_write.encode(answer, locations, self._seconds, refresh=refresh)
                budget.count(encoded, NotEncodedReason.LEFT, pending)
        finally:
            self._gateway.metrics.written(budget.encoded, budget.pending)
        if filter_path and isinstance(answer, dict):
            pretty, keep_empty = jsonio.is_pretty(dict(_parameters(incoming))), self._gateway.upstream.is_elasticsearch
            filtered = partial(rendered, answer, filter_path, pretty=pretty, keep_empty=keep_empty)
            await offload.run(buffered.size, buffered.replace, filtered)
        await buffered.release(_mark(budget, status))
        if rewritten is None and not locations:
            return Outcome("passthrough", status)
        return Outcome(_KIND, status, bool(budget.encoded) and budget.all_encoded)

    async def _located(self, names: Iterable[str], headers: RawHeaders, *, inline: bool) -> Locations:
        """Return the indices behind names whose documents are encoded after their write, not those encoded `inline`."""
        targets = await self._targets_of(names, headers, inline=inline)
        return {index: location for target in targets for index, location in target.post_write.items()}

    async def _targets_of(self, names: Iterable[str], headers: RawHeaders, *, inline: bool = True) -> list[WriteTarget]:
        """Return what names are; the engine is asked about some at a time."""
        room = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def target(name: str) -> WriteTarget:
            async with room:
                return await self._targets.of(name, headers, inline=inline)

        return await asyncio.gather(*map(target, names))

    async def _answer_document(self, incoming: RawRequest, api: str, index: InlineIndex, send: Send) -> Outcome:
        """Answer a request that writes one document to a followed index."""
        complete = await incoming.read_ahead(MAX_DOCUMENT_BYTES)
        readable = is_json(incoming, api) and complete
        document = await self._plain(incoming, MAX_DOCUMENT_BYTES) if readable else None
        budget = await self._budget(incoming, len(document or b""))
        if document is None:
            budget.pending[NotEncodedReason.SIZE if not complete else NotEncodedReason.FORMAT] += 1
            return await self._sent(incoming, budget, None, send)
        operation = "index" if api == "_doc" else api.removeprefix("_")
        submitted = budget.submit(index, operation, None, document)
        if submitted is None:
            return await self._sent(incoming, budget, None, send)
        try:
            result = await budget.result(submitted)
        finally:
            budget.release(submitted)
        outcome = await self._sent(incoming, budget, None if result is document else result, send)
        if outcome.status in _NOT_ALLOWED:
            self._targets.refused(index.name, incoming.headers)
        return outcome

    async def _answer_bulk(self, incoming: RawRequest, path_index: str | None, send: Send) -> Outcome:
        names = IndexNames(path_index, _beginning(incoming))
        known = await self._targets_of(names, incoming.headers)
        followed = any(target.inline is not None for target in known)
        isolating = any(target.pipeline for target in known) and await self._gateway.upstream.product() == "opensearch"
        changed = (followed or isolating) and is_json(incoming, "_bulk")
        size, chunks = await self._body(incoming) if changed else (0, None)
        budget = await self._budget(incoming, size)
        body: Data = None
        rewritten: Data = None
        if chunks is not None:
            offload = self._gateway.offload if isolating else None
            target_of = partial(self._targets.of, headers=incoming.headers)
            rewritten = BulkBody(path_index, target_of, budget, offload).rewritten(names.watched(chunks))
            if size <= _SHORT_BYTES:
                # Engines, too, handle a short body in one piece and a long one in parts, with different messages.
                rewritten = b"".join([part async for part in rewritten])
        elif incoming.whole_body is None and self._gateway.upstream.signer is None:
            body = names.watched(incoming.chunks())
        locate = partial(self._located, names, incoming.headers, inline=rewritten is not None)
        if isinstance(rewritten, AsyncIterator) or body is not None or await locate():
            return await self._answer_and_encode(incoming, send, locate, budget, body=body, rewritten=rewritten)
        if rewritten is not None:
            return await self._sent(incoming, budget, rewritten, send)
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

    async def _budget(self, incoming: RawRequest, size: int) -> EncodingBudget:
        added = min(MAX_ADDED_BYTES, await self._limit.bytes() - size)
        return EncodingBudget(self._batches, pipeline_of(incoming), self._seconds, added)

    async def _sent(self, incoming: RawRequest, budget: EncodingBudget, body: bytes | None, send: Send) -> Outcome:
        """Send a request with another body, or as it came, and return its outcome."""
        budget.complete = True
        mark = partial(_mark, budget)
        try:
            status = await self._gateway.upstream.forward(incoming, send, rewritten=body, mark=mark)
        finally:
            self._gateway.metrics.written(budget.encoded, budget.pending)
        return Outcome(_KIND, status, budget.all_encoded)


def _mark(budget: EncodingBudget, status: int) -> RawHeaders:
    """Return the header that says whether all documents have their features; what was refused is not in the index."""
    if not (budget.encoded or budget.pending) or status >= 400:
        return []
    return [(b"x-ttc-encoded", b"true" if budget.all_encoded else b"false")]


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

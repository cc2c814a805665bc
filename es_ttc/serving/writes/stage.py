"""Answers writes: documents of followed indices are sent with features, all else is forwarded unchanged.

The engine's answer is the client's, byte for byte. A write is never refused or lost because of its encoding: whatever
fails, it is sent as it came, the index's pipeline stamps it as pending, and a worker encodes it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from starlette.types import Send

from es_ttc.errors import InvalidRequest, RequestTooLarge
from es_ttc.index.attach.feature_locations import FeatureLocation
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.raw_request import RawRequest, decompressed, inflated
from es_ttc.serving.http.signing import changeable
from es_ttc.serving.request.response import Outcome
from es_ttc.serving.writes.afterwards import HeldResponse, LaterEncoding, Locations
from es_ttc.serving.writes.allowance import Allowance
from es_ttc.serving.writes.batches import EncodingBatches
from es_ttc.serving.writes.body_limit import BodyLimit
from es_ttc.serving.writes.bulk_body import BulkBody, names_in
from es_ttc.serving.writes.bulk_lines import MAX_DOCUMENT_BYTES
from es_ttc.serving.writes.documents import Pending
from es_ttc.serving.writes.followed_indices import FollowedIndex, FollowedIndices, PipelineIndex
from es_ttc.serving.writes.request import WriteRequest, is_json, may_change_indices, pipeline_of, refreshes, write_in

_KIND = "write"
_MAX_IN_MEMORY = 16 * 2**20
"""Maximum size of a `_bulk` whose length is not known from its headers: compressed, or in chunks."""
_SHORT_BYTES = 64 * 1024
_NOT_ALLOWED = frozenset({401, 403})
_OPERATIONS = {"_doc": "index", "_create": "create", "_update": "update"}


class WriteEncoding:
    """Answers requests that are no searches."""

    def __init__(self, gateway: Gateway) -> None:
        self._upstream = gateway.upstream
        self._indices = FollowedIndices(gateway.upstream)
        self._batches = EncodingBatches(gateway.encoders, gateway.encoding)
        self._later = LaterEncoding(gateway.settings, gateway.encoders, gateway.encoding)
        self._metrics = gateway.metrics
        self._offload = gateway.offload
        self._seconds = gateway.settings.write_timeout_ms / 1000
        self._added_bytes = gateway.settings.write_features_mb * 2**20
        self._limit = BodyLimit(gateway.upstream)
        self._metrics.watch_writes(lambda: self._batches.outstanding)

    async def close(self) -> None:
        """Close the connection with which features of written documents are stored."""
        await self._later.close()

    async def answer(self, incoming: RawRequest, send: Send) -> Outcome:
        """Answer one request."""
        write = write_in(incoming)
        if write is None or not changeable(incoming.headers, self._upstream.signer):
            return await self._passed(incoming, send)
        if write.api == "_bulk":
            return await self._answer_bulk(incoming, write, send)
        name = write.index or ""
        known = await self._indices.of(name, incoming.headers)
        index = known if isinstance(known, FollowedIndex) else None
        on_its_way = index is not None and write.api != "_update"
        locations = {} if on_its_way else await self._later.of(name)
        if locations:
            return await self._answer_and_encode(incoming, locations, send)
        if index is not None:
            return await self._answer_document(incoming, write, index, send)
        return await self._passed(incoming, send)

    async def _passed(self, incoming: RawRequest, send: Send) -> Outcome:
        status = 0
        try:
            status = await self._upstream.forward(incoming, send)
        finally:
            if status < 400 and may_change_indices(incoming):  # an unknown end counts as a change
                self._indices.forget()
                self._later.forget()
        return Outcome("passthrough", status)

    async def _answer_and_encode(
        self,
        incoming: RawRequest,
        locations: Locations,
        send: Send,
        rewritten: bytes | AsyncIterator[bytes] | None = None,
    ) -> Outcome:
        """Forward a write, and encode what the engine's response names before it is sent on."""
        held = HeldResponse(send)
        status = await self._upstream.forward(incoming, held, rewritten=rewritten)
        headers: RawHeaders = []
        encoded = pending = 0
        if status < 400:
            encoded, pending = await self._later.encode(
                held.decoded(), locations, self._seconds, refresh=refreshes(incoming)
            )
            if encoded or pending:
                headers = [(b"x-ttc-encoded", b"false" if pending else b"true")]
        await held.release(headers)
        self._metrics.written(encoded, {Pending.LEFT: pending} if pending else {})
        return Outcome(_KIND, status, bool(encoded) and not pending)

    async def _answer_document(
        self, incoming: RawRequest, write: WriteRequest, index: FollowedIndex, send: Send
    ) -> Outcome:
        """Answer a request that writes one document to a followed index."""
        complete = await incoming.read_ahead(MAX_DOCUMENT_BYTES)
        document = _plain(incoming, MAX_DOCUMENT_BYTES) if is_json(incoming, write.api) and complete else None
        allowance = await self._allowance(incoming, len(document or b""))
        if document is None:
            allowance.written.pending[Pending.SIZE if not complete else Pending.FORMAT] += 1
            return await self._sent(incoming, allowance, None, send)
        submitted = allowance.submit(index, _OPERATIONS[write.api], None, document)
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

    async def _answer_bulk(self, incoming: RawRequest, write: WriteRequest, send: Send) -> Outcome:
        async def follow(name: str) -> PipelineIndex | None:
            return await self._indices.of(name, incoming.headers)

        names = names_in(_beginning(incoming), write.index)
        known = [index for name in names if (index := await follow(name)) is not None]
        followed = any(isinstance(index, FollowedIndex) for index in known)
        locations = {} if followed else await self._locations(names)
        isolating = bool(known) and await self._upstream.product() == "opensearch"
        size, chunks = await _body(incoming) if (followed or isolating) and is_json(incoming, write.api) else (0, None)
        allowance = await self._allowance(incoming, size)
        body: bytes | AsyncIterator[bytes] | None = None
        if chunks is not None:
            body = BulkBody(write.index, follow, allowance, self._offload if isolating else None).rewritten(chunks)
            if size <= _SHORT_BYTES:
                # Engines, too, handle a short body in one piece and a long one in parts, with different messages.
                body = b"".join([part async for part in body])
        elif followed:
            allowance.written.pending[Pending.FORMAT] += 1
        if locations:
            return await self._answer_and_encode(incoming, locations, send, body)
        if followed or body is not None:
            return await self._sent(incoming, allowance, body, send)
        return await self._passed(incoming, send)

    async def _locations(self, names: Sequence[str]) -> Locations:
        """Return the indices behind some names whose documents are encoded right after they are written."""
        found: dict[str, FeatureLocation] = {}
        for name in names:
            found |= await self._later.of(name)
        return found

    async def _allowance(self, incoming: RawRequest, size: int) -> Allowance:
        added = min(self._added_bytes, await self._limit.bytes() - size)
        return Allowance(self._batches, pipeline_of(incoming), self._seconds, added)

    async def _sent(
        self, incoming: RawRequest, allowance: Allowance, body: bytes | AsyncIterator[bytes] | None, send: Send
    ) -> Outcome:
        """Send a request with another body, or as it came, and return its outcome."""
        written = allowance.written
        written.complete |= not isinstance(body, AsyncIterator)

        def mark(status: int) -> RawHeaders:
            if not written.any or status >= 400:  # what was refused is not in the index
                return []
            return [(b"x-ttc-encoded", b"true" if written.all_encoded else b"false")]

        try:
            status = await self._upstream.forward(incoming, send, rewritten=body, mark=mark)
        finally:
            self._metrics.written(written.encoded, written.pending)
        return Outcome(_KIND, status, written.all_encoded)


def _plain(incoming: RawRequest, limit: int) -> bytes | None:
    """Return a body that was read completely, decompressed; None if it is left to the engine."""
    try:
        body = decompressed(incoming.whole_body or b"", incoming.header(b"content-encoding"), limit)
    except (InvalidRequest, RequestTooLarge):
        return None
    if body is not None and body is not incoming.whole_body:
        incoming.count(len(body))
    return body


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


async def _body(incoming: RawRequest) -> tuple[int, AsyncIterator[bytes] | None]:
    """Return the size of a `_bulk` body and its parts; no parts if it is left to the engine.

    Features must not make a body longer than the engine accepts, so its size must be known.
    """
    length, encoding = incoming.header(b"content-length"), incoming.header(b"content-encoding")
    if length.isdecimal() and not encoding:
        whole = incoming.whole_body
        return int(length), incoming.chunks() if whole is None else _once(whole)
    if not await incoming.read_ahead(_MAX_IN_MEMORY):
        return 0, None
    body = _plain(incoming, _MAX_IN_MEMORY)
    return (0, None) if body is None else (len(body), _once(body))


async def _once(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in parts of a size that the event loop handles in little time."""
    for start in range(0, len(body), _SHORT_BYTES):
        yield body[start : start + _SHORT_BYTES]

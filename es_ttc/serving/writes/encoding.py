"""The documents of a request, encoded as they are sent: features are added to the JSON object's bytes.

All other bytes stay as they are. Documents of concurrent requests are encoded together: while a batch is encoded, those
that arrive wait, and become the next batch. So a single document is encoded at once on an idle gateway, and many
requests share the encoder's calls on a busy one.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import orjson

from es_ttc.common import exact_numbers
from es_ttc.encoders.base import Encoder
from es_ttc.errors import InvalidRequest
from es_ttc.index.ingest.compose import FieldSpan, compose, content_hash, document_hash, document_json
from es_ttc.index.ingest.encode import DocumentFeatures, encode_apart, feature_fields, features_apart
from es_ttc.index.mappings.ingest_pipeline import NO_PIPELINE
from es_ttc.index.mappings.spec import ROOT, IndexSpec
from es_ttc.index.mappings.write_options import WRITE_KEY
from es_ttc.serving.gateway import Gateway
from es_ttc.serving.logs import log
from es_ttc.serving.pool import work_of
from es_ttc.serving.writes.targets import InlineIndex

_KIND = "write"
_MAX_TOGETHER = 32
_BYTES_TOGETHER = 16 * 1024
"""Maximum number of documents, and of their bytes, per call of the encoder: searches are encoded in between."""
_MAX_OUTSTANDING = 1024
_BYTES_OUTSTANDING = 64 * 2**20
"""Maximum number of documents, and of their bytes, that are waiting or encoded and not yet sent."""
_RETRY_SECONDS = 5.0
"""Time after a failure of an encoder in which no documents of its index are encoded."""


class NotEncodedReason(StrEnum):
    """Why a document is sent as it came, so that a worker encodes it later."""

    OWN_FIELDS = "own_fields"  # the client sent fields below ``ttc``, which are the pipeline's matter
    NO_OBJECT = "no_object"  # it is not a JSON object, or has a key twice
    TEXT = "text"  # a text field cannot be encoded, or has a number that the engine rounds
    UPDATE = "update"  # it is a part of a document
    PIPELINE = "pipeline"  # a pipeline of the user's may change its text
    SIZE = "size"  # it is too long, or the features would make the request too long
    FORMAT = "format"  # the request's body is not JSON, or compressed in another way than gzip
    LATE = "late"  # the time for encoding was over
    BUSY = "busy"  # too many documents were waiting
    LEFT = "left"  # it was to be encoded right after its write, and was not in time, or another write came in between
    ENCODER = "encoder"  # the encoder could not be loaded, or failed


class _Prepared(NamedTuple):
    text: str
    spans: Sequence[FieldSpan]
    hash: str
    digest: str
    empty: bool


def with_features(
    lines: Sequence[bytes], spec: IndexSpec, key: str, encoder: Encoder
) -> list[bytes | NotEncodedReason]:
    """Return each document with its features and the key, or why it has none."""
    prepared = [_prepared(line, spec) for line in lines]
    usable = [one for one in prepared if isinstance(one, _Prepared)]
    composed = [(one.text, one.spans) for one in usable]
    encoded = iter(features_apart(encode_apart(composed, spec, encoder), composed, [one.hash for one in usable], spec))
    results: list[bytes | NotEncodedReason] = []
    for line, one in zip(lines, prepared, strict=True):
        own = next(encoded) if isinstance(one, _Prepared) else one
        if isinstance(own, DocumentFeatures) and isinstance(one, _Prepared):
            fields = {**feature_fields(own, spec), "document": one.digest, WRITE_KEY.removeprefix(f"{ROOT}."): key}
            results.append(spliced(line, orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY), empty=one.empty))
        else:
            results.append(own if isinstance(own, NotEncodedReason) else NotEncodedReason.TEXT)
    return results


def spliced(document: bytes, fields: bytes, *, empty: bool) -> bytes:
    """Return a JSON object with one more key, ``ttc``, at its end; all its bytes are kept."""
    end = document.rindex(b"}")
    return b"".join((document[:end], b"" if empty else b",", b'"ttc":', fields, document[end:]))


def _prepared(line: bytes, spec: IndexSpec) -> _Prepared | NotEncodedReason:
    try:
        document = exact_numbers.loads(line)
        json.loads(line, object_pairs_hook=_unique)  # the engine refuses such a document, and quotes it as it came
    except (ValueError, RecursionError):
        return NotEncodedReason.NO_OBJECT
    if not isinstance(document, dict):
        return NotEncodedReason.NO_OBJECT
    if any(name == ROOT or name.startswith(f"{ROOT}.") for name in document):
        return NotEncodedReason.OWN_FIELDS
    if _rounded(document, spec):
        return NotEncodedReason.TEXT
    try:
        text, spans = compose(document, spec.text_fields)
        digest = document_hash(document_json(document))
    except InvalidRequest:
        return NotEncodedReason.TEXT
    return _Prepared(text, spans, content_hash(text, spans, spec), digest, not document)


def _rounded(document: Mapping[str, Any], spec: IndexSpec) -> bool:
    """Return whether a text field has a decimal that the engine stores as another number, so as another text."""
    heads = {head for name in spec.text_fields for head in (name, name.partition(".")[0])}
    values = {name: document[name] for name in heads & document.keys()}
    return any(not number.integer for _, number in exact_numbers.exact_numbers_in(values))


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) != len({name for name, _ in pairs}):
        raise ValueError("a key twice")


@dataclass(slots=True, eq=False)
class Submitted:
    """A document that is being encoded."""

    line: bytes
    result: asyncio.Future[bytes | NotEncodedReason]


class EncodingBatches:
    """Encodes documents in batches, for one index at a time in the order of arrival.

    `outstanding` is the number of documents that are waiting, or encoded and not yet released.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._encoders = gateway.encoders
        self._pool = gateway.encoding
        self._waiting: dict[InlineIndex, deque[Submitted]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.outstanding = 0
        self._bytes = 0
        self._failed: dict[str, float] = {}

    def submit(self, index: InlineIndex, line: bytes) -> Submitted | NotEncodedReason:
        """Begin to encode a document, or return why not; :meth:`release` it when its result is sent, or not needed."""
        if self.outstanding >= _MAX_OUTSTANDING or self._bytes + len(line) > _BYTES_OUTSTANDING:
            return NotEncodedReason.BUSY
        loop = asyncio.get_running_loop()
        if self._failed.get(index.spec.encoder.key, 0.0) > loop.time():
            return NotEncodedReason.ENCODER
        submitted = Submitted(line, loop.create_future())
        self.outstanding += 1
        self._bytes += len(line)
        waiting = self._waiting.get(index)
        if waiting is None:
            self._waiting[index] = deque((submitted,))
            task = asyncio.create_task(self._encode_waiting(index))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            waiting.append(submitted)
        return submitted

    def release(self, submitted: Submitted) -> None:
        """Forget a document; if its encoding has not begun, it is not encoded."""
        submitted.result.cancel()
        self.outstanding -= 1
        self._bytes -= len(submitted.line)

    async def _encode_waiting(self, index: InlineIndex) -> None:
        waiting = self._waiting[index]
        while waiting:
            await asyncio.sleep(0)  # documents of the same request, or of others that are being read, join
            batch = _next_batch(waiting)
            if batch:
                await self._encode(index, batch)
        del self._waiting[index]

    async def _encode(self, index: InlineIndex, batch: list[Submitted]) -> None:
        results: list[bytes | NotEncodedReason]
        try:
            encoder = await self._encoders.serving(index.spec.encoder.key, index.name)
            with work_of(_KIND):
                lines = [one.line for one in batch]
                results = await self._pool.run(with_features, lines, index.spec, index.key, encoder)
        except Exception as error:  # noqa: BLE001 - an encoder may fail in any way; the documents go in as they came
            log.warning("documents could not be encoded", index=index.name, problem=f"{type(error).__name__}: {error}")
            self._failed[index.spec.encoder.key] = asyncio.get_running_loop().time() + _RETRY_SECONDS
            results = [NotEncodedReason.ENCODER] * len(batch)
        for one, result in zip(batch, results, strict=True):
            if not one.result.done():
                one.result.set_result(result)


def _next_batch(waiting: deque[Submitted]) -> list[Submitted]:
    """Take the next documents that are still needed."""
    batch: list[Submitted] = []
    size = 0
    for one in list(islice(waiting, _MAX_TOGETHER)):
        if batch and size + len(one.line) > _BYTES_TOGETHER:
            break
        waiting.popleft()
        if not one.result.done():
            batch.append(one)
            size += len(one.line)
    return batch


class WriteBudget:
    """What one request may spend on the encoding of its documents, in seconds and in bytes added to its body.

    Attributes:
        encoded: Number of documents that were sent with features.
        pending: Number of documents of followed indices that were sent as they came, by reason.
        complete: Whether all documents have been read.
    """

    def __init__(self, batches: EncodingBatches, pipeline: str | None, seconds: float, added_bytes: int) -> None:
        self.encoded = 0
        self.pending: Counter[NotEncodedReason] = Counter()
        self.complete = False
        self._batches = batches
        self._pipeline = pipeline
        self._seconds = seconds
        self._left = added_bytes

    @property
    def all_encoded(self) -> bool:
        """Whether all documents of followed indices were encoded."""
        return self.complete and not self.pending

    def count(self, encoded: int, reason: NotEncodedReason, pending: int) -> None:
        """Count documents that were encoded elsewhere, and those that were not."""
        self.encoded += encoded
        if pending:
            self.pending[reason] += pending

    def submit(self, index: InlineIndex, operation: str, pipeline: str | None, line: bytes) -> Submitted | None:
        """Begin to encode a document; return None if it is sent as it came, which is counted."""
        submitted = self._reason_against(index, operation, pipeline) or self._batches.submit(index, line)
        if isinstance(submitted, NotEncodedReason):
            self.pending[submitted] += 1
            return None
        return submitted

    def _reason_against(self, index: InlineIndex, operation: str, pipeline: str | None) -> NotEncodedReason | None:
        named = self._pipeline if pipeline is None else pipeline
        if operation == "update":
            return NotEncodedReason.UPDATE
        if index.final_pipeline or (index.own_pipeline if named is None else named != NO_PIPELINE):
            return NotEncodedReason.PIPELINE
        if self._seconds <= 0:
            return NotEncodedReason.LATE
        return NotEncodedReason.SIZE if self._left <= 0 else None

    async def result(self, submitted: Submitted) -> bytes:
        """Return the document with its features, or as it came if it has none in time."""
        if not submitted.result.done() and self._seconds > 0:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await asyncio.wait((submitted.result,), timeout=self._seconds)
            self._seconds -= loop.time() - begun
        result = submitted.result.result() if submitted.result.done() else NotEncodedReason.LATE
        if isinstance(result, NotEncodedReason):
            self.pending[result] += 1
            return submitted.line
        added = len(result) - len(submitted.line)
        if added > self._left:
            self._left = 0
            self.pending[NotEncodedReason.SIZE] += 1
            return submitted.line
        self._left -= added
        self.encoded += 1
        return result

    def release(self, submitted: Submitted) -> None:
        """Forget a document whose result is sent, or not needed."""
        self._batches.release(submitted)

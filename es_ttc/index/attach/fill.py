"""The fill: encode documents that lack features or whose text has changed.

Changes are found by `_seq_no`, shard by shard, from a checkpoint on. Documents whose features are current are skipped
by their marks, without reading their text. Reading, encoding and writing run at the same time, a bounded number of
documents each. Other writers are neither waited for nor blocked: a document that changes meanwhile keeps its own write,
and is found again later with a greater `_seq_no`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderError, EncoderMismatch, EngineUnavailable, InvalidRequest
from es_ttc.index.attach.source import (
    DocumentVersion,
    SourceTextReader,
    count_between,
    settled_writes,
    versions_between,
)
from es_ttc.index.attach.target import FeatureVersion, FeatureWrite, Target, WriteKind
from es_ttc.index.ingest.compose import FieldSpan, compose, content_hash
from es_ttc.index.ingest.encode import Composed, EncodedApart, encode_apart, feature_fields, features_apart
from es_ttc.index.ingest.failures import cause_of
from es_ttc.index.mappings.attached import FAILED
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec

_SAVE_SECONDS = 2.0
_BATCH_CHARACTERS = 64 * 1024
_MAX_PASSES = 10  # passes over changes made during the fill; later ones are left to the next fill
_MAX_CONFLICTS = 5
_MAX_REASON_LENGTH = 1000
_MAX_REASONS = 5
_SETTLED = frozenset({READY, EMPTY, FAILED})


@dataclass(slots=True)
class FillResult:
    """Counts of a fill."""

    index: str
    total: int = 0
    seen: int = 0
    written: int = 0
    unchanged: int = 0
    carried: int = 0
    failed: int = 0
    empty: int = 0
    truncated: int = 0  # documents that got features and are longer than `tokens_read`
    tokens_read: int = 0
    removed: int = 0
    deferred: int = 0
    seconds: float = 0.0
    encoder_seconds: float = 0.0
    unmarked: list[str] = field(default_factory=list)


ReportFill = Callable[[FillResult], None]  # called repeatedly with the present counts


async def fill(
    engine: Engine,
    source: Index,
    target: Target,
    encoder: Encoder,
    *,
    everything: bool = False,
    report: ReportFill | None = None,
) -> FillResult:
    """Update the features of a source index; `everything` also checks documents before the checkpoint, and failed ones.

    It ends with a pass that finds no changes, or after ten passes. A fill that was stopped is resumed by the next.
    """
    if encoder.identity.key != target.spec.encoder.key:
        raise EncoderMismatch(
            f"the features of index [{source.index}] are those of [{target.spec.encoder.key}], and the encoder is "
            f"[{encoder.identity.key}]: fill with the same encoder (--encoder), or attach again with the new one"
        )
    return await _FillRun(engine, source, target, encoder, report, everything).run()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Documents to encode, and the checkpoint after they are written."""

    documents: Sequence[tuple[DocumentVersion, FeatureVersion | None, dict[str, Any]]]
    shard: int
    reached: int


_Encoding = tuple[_Batch, asyncio.Task[list[FeatureWrite]]]  # a batch that is being encoded


@dataclass
class _FillRun:
    """One fill: its stages, and their common counts."""

    engine: Engine
    source: Index
    target: Target
    encoder: Encoder
    report: ReportFill | None
    everything: bool
    reached: dict[int, int] = field(default_factory=dict)
    checkpoint: dict[int, int] = field(default_factory=dict)
    saved: float = 0.0
    started: float = 0.0
    first_round: bool = True
    turn: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.outcome = FillResult(self.source.index, tokens_read=self.target.spec.tokens_read)
        self.texts = SourceTextReader(self.engine, self.source.index, self.target.spec.text_fields)

    async def run(self) -> FillResult:
        self.started = self.saved = time.monotonic()
        if not self.everything:
            self.reached = dict(await self.target.load())
            self.checkpoint = dict(self.reached)
        for number in range(_MAX_PASSES):
            self.first_round = number == 0
            before = self._changes()
            await self._pass()
            if self._changes() == before:
                break
        self.outcome.removed += await self.target.remove_orphans()
        self._report_progress()
        return self.outcome

    def _changes(self) -> int:
        return self.outcome.written + self.outcome.failed + self.outcome.deferred

    async def _pass(self) -> None:
        """Check all documents written since the last pass began."""
        settled = await settled_writes(self.engine, self.source)
        await self.target.refresh()
        if self.first_round:
            self.outcome.total = await count_between(self.engine, self.source, self.reached, settled)
            self._report_progress()
        batches: asyncio.Queue[_Batch | None] = asyncio.Queue(1)
        encoding: asyncio.Queue[_Encoding | None] = asyncio.Queue(1)
        try:
            async with asyncio.TaskGroup() as stages:
                stages.create_task(self._read(settled, batches))
                stages.create_task(self._encode(stages, batches, encoding))
                stages.create_task(self._write(encoding))
        except BaseExceptionGroup as group:
            raise cause_of(group) from None
        await self._save()

    async def _save(self) -> None:
        """Save the checkpoint if it has changed."""
        if self.reached != self.checkpoint:
            await self.target.save(self.reached)
            self.checkpoint = dict(self.reached)
        self.saved = time.monotonic()

    async def _read(self, settled: dict[int, int], batches: asyncio.Queue[_Batch | None]) -> None:
        for shard in sorted(settled):
            after = self.reached.get(shard, -1)
            pages = versions_between(
                self.engine, self.source.index, shard, after, settled[shard], self.target.doc_value_fields
            )
            async for page in pages:
                marks = await self.target.marks(page)
                stale = {
                    version.key: (version, mark)
                    for version, mark in zip(page, marks, strict=True)
                    if not self._is_done(mark)
                }
                self._skip(len(page) - len(stale))
                async for batch in self._batches([version for version, _ in stale.values()]):
                    documents = [(version, stale[version.key][1], text) for version, text in batch]
                    await batches.put(_Batch(documents, shard, documents[-1][0].seq_no))
                await batches.put(_Batch((), shard, page[-1].seq_no))
            await batches.put(_Batch((), shard, settled[shard]))
        await batches.put(None)

    async def _batches(
        self, versions: Sequence[DocumentVersion]
    ) -> AsyncIterator[list[tuple[DocumentVersion, dict[str, Any]]]]:
        """Yield documents with their texts, in the order of writing, in batches that are encoded in seconds."""
        found = 0
        async for part in self.texts.read(versions):
            found += len(part)
            batch: list[tuple[DocumentVersion, dict[str, Any]]] = []
            size = 0
            for version, text in part:
                batch.append((version, text))
                size += len(str(text))
                if size > _BATCH_CHARACTERS:
                    yield batch
                    batch, size = [], 0
            if batch:
                yield batch
        self._defer(len(versions) - found)

    async def _encode(
        self,
        stages: asyncio.TaskGroup,
        batches: asyncio.Queue[_Batch | None],
        encoding: asyncio.Queue[_Encoding | None],
    ) -> None:
        """Encode batches, at most two at a time: the features of one are packed while the encoder has the next one."""
        while (batch := await batches.get()) is not None:
            work = asyncio.to_thread(
                encode_items, batch.documents, self.target.spec, self.encoder, self._encode_in_turn
            )
            await encoding.put((batch, stages.create_task(work)))
        await encoding.put(None)

    def _encode_in_turn(self, composed: Sequence[Composed], spec: IndexSpec, encoder: Encoder) -> EncodedApart:
        with self.turn:
            begun = time.monotonic()
            encoded = encode_apart(composed, spec, encoder)
            self.outcome.encoder_seconds += time.monotonic() - begun
        return encoded

    async def _write(self, encoding: asyncio.Queue[_Encoding | None]) -> None:
        while (job := await encoding.get()) is not None:
            batch, task = job
            waiting = await task
            if waiting:
                await self._write_items(waiting)
            self.reached[batch.shard] = max(batch.reached, self.reached.get(batch.shard, -1))
            if time.monotonic() - self.saved >= _SAVE_SECONDS:
                await self._save()
            self._report_progress()

    async def _write_items(self, items: Sequence[FeatureWrite]) -> None:
        """Write until every item is written, outdated, or marked as failed."""
        for _ in range(_MAX_CONFLICTS):
            written = await self.target.write(items)
            to_repeat = []
            for position, item in enumerate(items):
                if position in written.moved:
                    self._defer(1)
                elif position in written.left:
                    self._leave(written.left[position])
                elif position in written.conflicts:
                    to_repeat.append(item)
                elif position in written.refused and item.kind is not WriteKind.FAILURE:
                    to_repeat.append(_failure(item.version, item.mark, written.refused[position]))
                else:  # if not even the reason can be written, the document is counted, and found again if it changes
                    self._count(item)
            if not to_repeat:
                return
            await self.target.refresh()
            marks = await self.target.marks([item.version for item in to_repeat])
            items = [
                replace(item, mark=mark) for item, mark in zip(to_repeat, marks, strict=True) if not _is_newer(mark)
            ]
            self._skip(len(to_repeat) - len(items))
        raise EngineUnavailable(
            f"{len(items)} documents of [{self.source.index}] met another writer {_MAX_CONFLICTS} times: is a second "
            "fill running?"
        )

    def _is_done(self, mark: FeatureVersion | None) -> bool:
        retry = self.everything and mark is not None and mark.state == FAILED and not mark.outdated
        return is_settled(mark) and not retry

    def _skip(self, documents: int) -> None:
        """Count documents with current features; later passes find those of this fill among them."""
        if self.first_round:
            self.outcome.unchanged += documents
            self._see(documents)

    def _defer(self, documents: int) -> None:
        self.outcome.deferred += documents

    def _count(self, item: FeatureWrite) -> None:
        if item.kind is WriteKind.RENEWAL:
            self._skip(1)
            return
        self._see(1)
        if item.kind is WriteKind.FAILURE:
            self.outcome.failed += 1
        else:
            self.outcome.written += 1
            self.outcome.empty += item.fields["state"] == EMPTY
            self.outcome.truncated += item.truncated

    def _leave(self, reason: str) -> None:
        self._see(1)
        self.outcome.failed += 1
        if len(self.outcome.unmarked) < _MAX_REASONS:
            self.outcome.unmarked.append(reason)

    def _see(self, documents: int) -> None:
        self.outcome.seen += documents
        self.outcome.total = max(self.outcome.total, self.outcome.seen)

    def _report_progress(self) -> None:
        self.outcome.seconds = time.monotonic() - self.started
        if self.report:
            self.report(self.outcome)


def is_settled(mark: FeatureVersion | None) -> bool:
    """Return whether a document's features are of the requested version or a later one, or cannot be made."""
    return mark is not None and (mark.outdated or (mark.current and mark.state in _SETTLED))


def encode_items(
    documents: Sequence[tuple[DocumentVersion, FeatureVersion | None, dict[str, Any]]],
    spec: IndexSpec,
    encoder: Encoder,
    encode: Callable[[Sequence[Composed], IndexSpec, Encoder], EncodedApart] = encode_apart,
) -> list[FeatureWrite]:
    """Return the writes for documents, with the features of those whose text has changed."""
    items: list[FeatureWrite] = []
    changed: list[tuple[DocumentVersion, FeatureVersion | None, str, tuple[FieldSpan, ...], str]] = []
    for version, mark, document in documents:
        try:
            text, spans = compose(document, spec.text_fields)
        except InvalidRequest as error:
            items.append(_failure(version, mark, str(error)))
            continue
        digest = content_hash(text, spans, spec)
        if mark is not None and mark.hash == digest and mark.encoder == spec.encoder.key:
            items.append(FeatureWrite(version, mark, WriteKind.RENEWAL, {}))
        else:
            changed.append((version, mark, text, spans, digest))
    composed, digests = [(text, spans) for _, _, text, spans, _ in changed], [digest for *_, digest in changed]
    encoded = features_apart(encode(composed, spec, encoder), composed, digests, spec)
    for (version, mark, *_), own in zip(changed, encoded, strict=True):
        if isinstance(own, EncoderError):
            items.append(_failure(version, mark, str(own)))
        else:
            items.append(FeatureWrite(version, mark, WriteKind.FEATURES, feature_fields(own, spec), own.truncated))
    return items


def _failure(version: DocumentVersion, mark: FeatureVersion | None, reason: str) -> FeatureWrite:
    return FeatureWrite(version, mark, WriteKind.FAILURE, {"state": FAILED, "reason": reason[:_MAX_REASON_LENGTH]})


def _is_newer(mark: FeatureVersion | None) -> bool:
    """Return whether another fill has written features of this version, or of a later one."""
    return mark is not None and (mark.outdated or (mark.current and mark.state != FAILED))

"""The ingest: read, encode and write as stages that run at the same time.

Reading has a thread, encoding has threads or processes, so the encoder is busy while documents are read and the engine
writes. Bounded queues between the stages limit memory: a slow stage blocks the ones before it.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

from es_ttc.encoders.base import Encoder, fix_for
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderError, EncoderMismatch, EngineError, InvalidRequest
from es_ttc.index.ingest.bulk import BatchLimits, DocumentAction, RetryPolicy, bulk_batches, write
from es_ttc.index.ingest.checkpoint import CompletedPrefix, IngestCheckpoint
from es_ttc.index.ingest.dead_letters import DeadLetter, DeadLetters
from es_ttc.index.ingest.encode_parts import EncodedPart, EncodeProcesses, PartEncoders, PartLayout
from es_ttc.index.ingest.failures import cause_of
from es_ttc.index.ingest.prepare import Prepared, id_of, prepare, raw_document
from es_ttc.index.ingest.readers import Inputs, Record
from es_ttc.index.ingest.skip_unchanged import UnchangedFilter, WrittenIds, missing_from
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import CALIBRATION, IndexSpec, own_meta
from es_ttc.index.mappings.write_options import WRITES, WriteOptions

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK_DOCUMENTS = 512
_CHUNK_BYTES = 4 * 2**20
_CHUNK_CHARACTERS = 256 * 1024
_PART_CHARACTERS = 32 * 1024  # some 8,000 tokens of English: 12 MB as float32 of 384 dimensions
_CHARACTERS_A_TOKEN = 8  # more than any tokenizer needs: limits the weight of a long text in a chunk
_SAVE_SECONDS = 1.0
_REASONS = 3


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Options of an ingest; without a field of ids they come from ``_id`` or the content."""

    id_field: str | None = None
    batch: BatchLimits = field(default_factory=BatchLimits)
    patience: RetryPolicy | None = None
    concurrency: int = 2
    processes: EncodeProcesses | None = None


@dataclass(slots=True)
class IngestResult:
    """Counts of an ingest."""

    resumed_at: int = 0
    rejected_before: int = 0
    read: int = 0
    written: int = 0
    skipped: int = 0
    rejected: int = 0
    missing: int = 0
    missing_ids: list[str] = field(default_factory=list)
    repeated: int = 0
    reasons: list[str] = field(default_factory=list)
    empty: int = 0
    truncated: int = 0
    seconds: float = 0.0
    encoder_seconds: float = 0.0
    processes: int = 1

    @property
    def settled(self) -> int:
        """Records that are done: written, skipped or rejected."""
        return self.written + self.skipped + self.rejected

    @property
    def complete(self) -> bool:
        """Whether every document is in the index, including those of an earlier run."""
        return not (self.rejected or self.rejected_before or self.missing)

    @property
    def documents_per_second(self) -> float:
        """Records done per second."""
        return self.settled / self.seconds if self.seconds else 0.0

    @property
    def encoder_busy(self) -> float:
        """Share of the time that the encoders were busy, 0 to 1."""
        return self.encoder_seconds / self.processes / self.seconds if self.seconds else 0.0


ReportIngest = Callable[[IngestResult, float | None], None]  # gets the counts and the share of the input read


async def ingest(
    engine: Engine,
    index: str | Index,
    inputs: Inputs,
    encoder: Encoder,
    *,
    dead_letters: DeadLetters,
    options: IngestOptions | None = None,
    checkpoint: IngestCheckpoint | None = None,
    rejected_before: Collection[int] = (),
    report: ReportIngest | None = None,
) -> IngestResult:
    """Write documents with their features into an index that es-ttc created.

    A record is done if it was acknowledged, unchanged or dead-lettered; the checkpoint lets a stopped run resume. At
    the end the index is queried for every document that is done; absent ones count as missing.
    """
    source = index if isinstance(index, Index) else await Index.only(engine, index)
    concrete, mapping, spec = source.index, source.mapping, source.own_spec
    if spec.encoder.key != encoder.identity.key:
        raise EncoderMismatch(
            f"index [{concrete}] holds vectors of [{spec.encoder.key}], and the encoder is [{encoder.identity.key}]: "
            + fix_for(
                spec.encoder.key,
                [encoder.identity.key],
                "ingest with the index's own encoder (--encoder), or make another index",
            )
        )
    options = options or IngestOptions()
    followed = WriteOptions.of(mapping)
    layout = PartLayout(spec, "" if followed is None else followed.key)
    encoders = (
        PartEncoders.in_processes(layout, options.processes)
        if options.processes
        else PartEncoders.in_threads(layout, encoder)
    )
    run = _IngestRun(engine, concrete, spec, encoders, inputs, dead_letters, options, checkpoint, report)
    with run.ids:
        return await run.run(rejected_before)


_Encoding = tuple[Sequence[Prepared], asyncio.Task[EncodedPart]]  # a part that is being encoded


@dataclass
class _IngestRun:
    """One ingest: its stages, and their common counts (changed by the event loop's thread only)."""

    engine: Engine
    index: str
    spec: IndexSpec
    encoders: PartEncoders
    inputs: Inputs
    dead_letters: DeadLetters
    options: IngestOptions
    checkpoint: IngestCheckpoint | None
    report: ReportIngest | None
    max_bytes: int = 0
    saved: float = 0.0
    started: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        position = self.checkpoint.position if self.checkpoint else 0
        processes = self.options.processes
        self.outcome = IngestResult(resumed_at=position, processes=processes.number if processes else 1)
        self.settled = CompletedPrefix(position)
        self.records = enumerate(self.inputs.records())
        self.ids = WrittenIds()
        self.unchanged = UnchangedFilter(self.engine, self.index, self.spec)
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="ingest-read")

    async def run(self, rejected_before: Collection[int]) -> IngestResult:
        self.started = self.saved = time.monotonic()
        try:
            await self._skip_and_write(frozenset(rejected_before))
        finally:
            self.ended = True
            self.threads.shutdown(wait=False, cancel_futures=True)
            self.encoders.close()
            self._save()
        await self.engine.refresh(self.index)
        await self._check_index()
        self.outcome.repeated = self.ids.repeated
        self.outcome.missing, self.outcome.missing_ids = await missing_from(self.engine, self.index, self.ids)
        if self.checkpoint:
            self.checkpoint.remove()
        self._report_progress()
        return self.outcome

    async def _skip_and_write(self, rejected_before: frozenset[int]) -> None:
        """Skip the records that are done, and write the others."""
        await self._threaded(self._skip_settled, rejected_before)
        capabilities = await self.engine.capabilities()
        self.max_bytes = int(capabilities.max_content_length * 0.95)
        await self.unchanged.start()
        chunks: asyncio.Queue[Sequence[Prepared] | None] = asyncio.Queue(1)
        encoding: asyncio.Queue[_Encoding | None] = asyncio.Queue(self.encoders.at_once)
        actions: asyncio.Queue[Sequence[DocumentAction] | None] = asyncio.Queue(1)
        try:
            async with asyncio.TaskGroup() as stages:
                stages.create_task(self._read(chunks))
                stages.create_task(self._encode(stages, chunks, encoding))
                stages.create_task(self._collect(encoding, actions))
                stages.create_task(self._write(actions))
        except BaseExceptionGroup as group:
            raise cause_of(group) from None

    async def _check_index(self) -> None:
        """Detect an index that was deleted meanwhile: engines create one of that name again, with guessed mappings."""
        mapping = (await self.engine.mapping(self.index))[self.index]
        if {
            key: value for key, value in own_meta(mapping).items() if key not in (CALIBRATION, WRITES)
        } != self.spec.as_meta():
            raise EngineError(
                f"index [{self.index}] was deleted or replaced while it was written to: delete what is there now, make "
                "it again, and ingest again"
            )

    async def _read(self, chunks: asyncio.Queue[Sequence[Prepared] | None]) -> None:
        """Read and check documents, and compare them with the index."""
        while (chunk := await self._threaded(self._next_chunk)) is not None:
            documents, rejected = chunk
            self.outcome.read += len(documents) + len(rejected)
            for sequence, record, error in rejected:
                self._reject(sequence, record, None, 400, str(error))
            changed = await self.unchanged.changed(documents, self.settled.position)
            writing = {each.sequence for each in changed}
            for each in documents:
                if each.sequence not in writing:
                    self.outcome.skipped += 1
                    self._settle(each)
            self._progress()
            if changed:
                await chunks.put(changed)
        await chunks.put(None)

    async def _encode(
        self,
        stages: asyncio.TaskGroup,
        chunks: asyncio.Queue[Sequence[Prepared] | None],
        encoding: asyncio.Queue[_Encoding | None],
    ) -> None:
        """Give parts to the encoders, some more than they work on at once."""
        while (documents := await chunks.get()) is not None:
            for part in _parts(documents):
                await encoding.put((part, stages.create_task(self.encoders.encoded(part))))
        await encoding.put(None)

    async def _collect(
        self, encoding: asyncio.Queue[_Encoding | None], actions: asyncio.Queue[Sequence[DocumentAction] | None]
    ) -> None:
        """Take encoded parts in the order of the input: of two documents with one id the later must win."""
        while (part := await encoding.get()) is not None:
            documents, task = part
            encoded = await task
            self.outcome.encoder_seconds += encoded.seconds
            await actions.put(list(self._actions(documents, encoded)))
        await actions.put(None)

    def _actions(self, documents: Sequence[Prepared], encoded: EncodedPart) -> Iterator[DocumentAction]:
        """Yield the actions of a part, and reject documents that cannot be encoded or are too large."""
        for document, found in zip(documents, encoded.documents, strict=True):
            if isinstance(found, EncoderError):
                self._reject(document.sequence, document.record, document.id, 400, str(found))
                continue
            action = DocumentAction(document, *found)
            if action.nbytes > self.max_bytes:
                reason = f"the document with its features has {action.nbytes:,} bytes, above the engine's limit"
                self._reject(document.sequence, document.record, document.id, 413, reason)
                continue
            yield action

    async def _write(self, actions: asyncio.Queue[Sequence[DocumentAction] | None]) -> None:
        """Keep a few bulks in flight, never two with a document in common: the later one must win."""
        limits = self.options.batch
        if limits.bytes > self.max_bytes:
            limits = BatchLimits(self.max_bytes, limits.actions, limits.seconds)
        flights: dict[asyncio.Task[None], frozenset[str]] = {}
        async with asyncio.TaskGroup() as bulks:
            async for batch in bulk_batches(actions, limits):
                ids = frozenset(action.prepared.id for action in batch)
                while len(flights) >= self.options.concurrency or any(ids & other for other in flights.values()):
                    done, _ = await asyncio.wait(flights, return_when=asyncio.FIRST_COMPLETED)
                    for flight in done:
                        del flights[flight]
                flights[bulks.create_task(self._write_batch(batch))] = ids

    async def _write_batch(self, batch: Sequence[DocumentAction]) -> None:
        items = await write(self.engine, self.index, batch, self.options.patience)
        for action, item in zip(batch, items, strict=True):
            document = action.prepared
            if item.error is not None:
                self._reject(document.sequence, document.record, document.id, item.status, item.error)
                continue
            self.outcome.written += 1
            self.outcome.empty += action.empty
            self.outcome.truncated += action.truncated
            self._settle(document)
        self._progress()

    def _settle(self, document: Prepared) -> None:
        """Count a document that is in the index."""
        self.ids.add(document.id)
        self.settled.add(document.sequence)

    def _skip_settled(self, rejected: frozenset[int]) -> None:
        """Read the ids of records that an earlier run has done, for the check at the end."""
        for sequence, record in islice(self.records, self.settled.position):
            if self.ended:  # the process would end only after millions of records
                return
            try:
                identifier = id_of(record, self.options.id_field)
            except InvalidRequest:  # rejected in that run too, whether or not its dead letter still exists
                self.outcome.rejected_before += 1
                continue
            if sequence in rejected:
                self.outcome.rejected_before += 1
            else:
                self.ids.add(identifier)

    def _next_chunk(self) -> tuple[list[Prepared], list[tuple[int, Record, InvalidRequest]]] | None:
        documents: list[Prepared] = []
        rejected: list[tuple[int, Record, InvalidRequest]] = []
        characters = size = 0
        for sequence, record in self.records:
            try:
                document = prepare(sequence, record, self.spec, self.options.id_field)
            except InvalidRequest as error:
                rejected.append((sequence, record, error))
            else:
                documents.append(document)
                characters += min(len(document.text), self.spec.max_tokens * _CHARACTERS_A_TOKEN)
                size += len(document.source)
            full = len(documents) + len(rejected) == _CHUNK_DOCUMENTS
            if full or characters >= _CHUNK_CHARACTERS or size >= _CHUNK_BYTES:
                break
        return (documents, rejected) if documents or rejected else None

    def _reject(self, sequence: int, record: Record, identifier: str | None, status: int, reason: str) -> None:
        document = raw_document(record)
        self.dead_letters.add(DeadLetter(sequence, record.source, record.number, identifier, status, reason, document))
        self.outcome.rejected += 1
        if len(self.outcome.reasons) < _REASONS:
            self.outcome.reasons.append(f"{record.source}, record {record.number}: {reason}")
        self.settled.add(sequence)

    def _progress(self) -> None:
        if time.monotonic() - self.saved >= _SAVE_SECONDS:
            self._save()
        self._report_progress()

    def _save(self) -> None:
        """Save dead letters first, because the checkpoint counts them as done."""
        self.dead_letters.sync()
        if self.checkpoint and self.settled.position > self.checkpoint.position:
            self.checkpoint.save(self.settled.position)
        self.saved = time.monotonic()

    def _report_progress(self) -> None:
        self.outcome.seconds = time.monotonic() - self.started
        if self.report:
            self.report(self.outcome, self.inputs.fraction)

    async def _threaded(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(call, *arguments, **named))


def _parts(documents: Sequence[Prepared]) -> Iterator[Sequence[Prepared]]:
    """Cut a chunk into parts of texts of similar length: small for low latency, large for efficient batches."""
    if len({document.id for document in documents}) == len(documents):  # else the order of documents must not change
        documents = sorted(documents, key=lambda document: len(document.text))
    part: list[Prepared] = []
    characters = 0
    for document in documents:
        if part and characters + len(document.text) > _PART_CHARACTERS:
            yield part
            part, characters = [], 0
        part.append(document)
        characters += len(document.text)
    if part:
        yield part

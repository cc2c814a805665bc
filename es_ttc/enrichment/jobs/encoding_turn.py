"""One worker's turn at a job that encodes.

A turn acquires the job's lease, follows the writes to the index for a while, and releases the lease. While the index's
sequence numbers stand still it sends one `_stats` request a look, and searches nothing. When they move it runs the
fill, which encodes what is pending and writes it with the version that was read. How far it has come is stored every
few seconds; a worker that is killed loses these seconds, and the next one finds their documents encoded.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.enrichment.jobs.followed_jobs import enrich_like, start_next
from es_ttc.enrichment.jobs.leases import HeldLease
from es_ttc.enrichment.jobs.record import EncodingCheckpoint, EncodingJob, JobState
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import JobStopped, Turn, TurnEnd, hold_turn
from es_ttc.errors import ConfigurationError, EncoderMismatch, EngineError
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices, target_of
from es_ttc.index.attach.fill import FillResult, fill
from es_ttc.index.attach.followed_writes import follow_writes, is_followed
from es_ttc.index.attach.side_index import attach_beside
from es_ttc.index.attach.source import Checkpoint, positions
from es_ttc.index.attach.source_checks import require_readable
from es_ttc.index.mappings.attached import CHECKPOINT
from es_ttc.index.mappings.encoder import load_encoder_for
from es_ttc.index.mappings.spec import STATE
from es_ttc.index.mappings.write_options import WriteOptions
from es_ttc.settings import Settings

LEASE_SECONDS = 10.0
"""Time after which the job of a killed worker is taken over. Vectors wait for it, so it is shorter than that of jobs
that enrich."""
LOOK_SECONDS = 0.5  # interval at which an index's sequence numbers are compared with those that were seen
_REFUSALS = (400, 401, 403, 404)  # an operator must see to them; after others the next turn tries again
_SAVE_SECONDS = 2.0
_STATE_SECONDS = 2.0  # interval at which a turn reads whether its job was paused


class _IndexReplaced(Exception):
    """The index was deleted, or its features are in another one: the next turn begins with what is there."""


class LoadedEncoders:
    """The encoders of a worker, loaded when they are first needed and shared by its turns."""

    def __init__(
        self, settings: Settings, load: Callable[[EncoderIdentity, str | None], Encoder] | None = None
    ) -> None:
        self._settings = settings
        self._load_one = load or (lambda identity, name: load_encoder_for(identity, name, cache_dir=settings.cache_dir))
        self._loaded: dict[str, Encoder] = {}
        self._loading = threading.Lock()

    def of(self, identity: EncoderIdentity) -> Encoder:
        """Return the encoder of an index's features."""
        with self._loading:
            if identity.key not in self._loaded:
                self._loaded[identity.key] = self._load(identity)
            return self._loaded[identity.key]

    def _load(self, identity: EncoderIdentity) -> Encoder:
        others = []
        for name in (self._settings.chosen_encoder, *self._settings.encoders):
            encoder = self._load_one(identity, name)
            if encoder.identity.key == identity.key:
                return encoder
            others.append(encoder.identity.key)
        raise EncoderMismatch(
            f"the features are those of [{identity.key}], and this worker has the encoders [{', '.join(others)}]: set "
            f"ES_TTC_ENCODER to {identity.model} for it, or name that one in ES_TTC_ENCODERS"
        )


async def take_encoding_turn(
    store: JobStore, settings: Settings, encoders: LoadedEncoders, job_id: str, ending: Callable[[], bool]
) -> TurnEnd:
    """Encode what is written to the index of one job for a while."""
    job = await store.encoding.find(job_id)
    if job is None or job.status is not JobState.RUNNING:
        return TurnEnd.NOT_DUE

    async def work(lease: HeldLease) -> TurnEnd:
        run = _EncodingRun(store, settings, encoders, job, lease, ending)
        try:
            return await run.run()
        finally:
            with suppress(EngineError):
                await run.save()

    return await hold_turn(store, job.id, 0, LEASE_SECONDS, work, lambda error: error.upstream_status in _REFUSALS)


class EncodingWork:
    """The work of jobs that encode; every followed index has a turn in a thread, so no backlog delays another."""

    name = "encode"
    max_seconds = 3600.0
    queued_seconds = 10
    sweep_share = 0.0

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._encoders = LoadedEncoders(settings)
        self.queue = f"es-ttc-{settings.jobs_index}-encode"
        self.ending = threading.Event()  # set when the worker is told to stop: its turns end

    async def take_turn(self, store: JobStore, _: Any, turn: Turn) -> TurnEnd:
        """Encode what is written to the index of a job for a while."""
        return await take_encoding_turn(store, self._settings, self._encoders, turn.job, self.ending.is_set)

    async def waiting(self, store: JobStore, _: Any) -> list[Turn]:
        """Return the jobs that need a worker, also those of indices added behind a followed alias or data stream."""
        running = await start_next(store, await store.encoding.list([JobState.RUNNING]))
        return [Turn(*partition) for partition in await store.leases.free([(job.id, 0) for job in running])]


@dataclass
class _EncodingRun:
    store: JobStore
    settings: Settings
    encoders: LoadedEncoders
    job: EncodingJob
    lease: HeldLease
    ending: Callable[[], bool]
    checkpoint: EncodingCheckpoint = field(default_factory=EncodingCheckpoint)
    stored: EncodingCheckpoint | None = None
    readable: bool = False
    saved: float = 0.0
    checked: float = 0.0
    present: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.settings.jobs_turn_seconds

    async def run(self) -> TurnEnd:
        self.checkpoint = self.stored = await self.store.checkpoints.get(self.job.id)
        try:
            held = await self._held()
            encoder = await asyncio.to_thread(self.encoders.of, held.spec.encoder)
        except (EncoderMismatch, ConfigurationError) as error:  # another worker may have it
            await self.lease.note(str(error))
            return TurnEnd.OUTAGE
        try:
            while time.monotonic() < self.deadline:
                await self._require_running()
                if self._has_seen(await positions(self.store.engine, held.source)):
                    await self.save_sometimes()
                    await asyncio.sleep(LOOK_SECONDS)
                else:
                    await self.require_same(held)
                    await self._until_stopped(self._fill(held, encoder))
        except _IndexReplaced:
            pass
        return TurnEnd.TIME

    async def save(self) -> None:
        """Store how far the job has come, unless it was stored just now."""
        if self.checkpoint != self.stored:
            await self.store.checkpoints.put(self.job.id, self.checkpoint)
            self.stored = self.checkpoint
        self.saved = time.monotonic()

    async def save_sometimes(self) -> None:
        """Store how far the job has come, every few seconds."""
        if time.monotonic() - self.saved >= _SAVE_SECONDS:
            await self.save()

    async def _held(self) -> FeatureLocation:
        """Read the index and where its features are stored; begin again if either is another one than before."""
        if self.job.name:
            await self._follow_like_the_others()
        held = (await Indices.behind(self.store.engine, self.job.index)).only()
        if not self.checkpoint.is_of(held.source.uuid, held.index):
            reset = {"source": held.source.uuid, "holder": held.index, "shards": {}}
            self.checkpoint = self.checkpoint.model_copy(update=reset)
        self.present = time.monotonic()
        return held

    async def _follow_like_the_others(self) -> None:
        """Attach features to a new index behind an alias or a data stream, as to the indices before it."""
        engine = self.store.engine
        indices = await Indices.behind(engine, self.job.name)
        source = next((source for source in indices.sources if source.index == self.job.index), None)
        pattern = next((held for held in indices.present if held.source.index != self.job.index), None)
        if source is None or pattern is None:
            return
        held = await FeatureLocation.of(engine, source)
        options = WriteOptions.of(pattern.holder.mapping)
        if held is None:
            encoder = await asyncio.to_thread(self.encoders.of, pattern.spec.encoder)
            await attach_beside(engine, source, pattern.spec, encoder)
            held = (await Indices.behind(engine, self.job.index)).only()
        if options is not None and not is_followed(held):
            enrich = not held.side and options.enrich
            if enrich:
                enrich = await enrich_like(self.store, pattern.source.index, self.job.index)
            await follow_writes(engine, held, options.encode, enrich=enrich, plugin_timeout=options.plugin_timeout)

    async def require_same(self, held: FeatureLocation) -> None:
        """Check every few seconds that the features are still in the same index: engines create a deleted one again."""
        if time.monotonic() - self.present < _STATE_SECONDS:
            return
        self.present = time.monotonic()
        now = (await Indices.behind(self.store.engine, self.job.index)).only()
        if (now.source.uuid, now.index, now.spec) != (held.source.uuid, held.index, held.spec):
            raise _IndexReplaced

    def _has_seen(self, now: Checkpoint) -> bool:
        return all(self.checkpoint.shards.get(shard, -1) >= seq_no for shard, seq_no in now.items())

    async def _fill(self, held: FeatureLocation, encoder: Encoder) -> None:
        if not self.readable:  # checked once a turn, and not while nothing is written: it searches
            await require_readable(self.store.engine, held.source, held.spec.text_fields)
            self.readable = True
        before = self.checkpoint

        def count(filled: FillResult) -> None:
            self.checkpoint = self.checkpoint.model_copy(
                update={
                    "written": before.written + filled.written,
                    "failed": before.failed + filled.failed,
                    "removed": before.removed + filled.removed,
                    "encoder_seconds": before.encoder_seconds + filled.encoder_seconds,
                }
            )

        target = _RecordedTarget(self, held)
        await fill(self.store.engine, held.source, target, encoder, report=count)

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until it is done, or until the job is stopped."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=0.2)
                await self._require_running()
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _require_running(self) -> None:
        if self.ending():
            raise JobStopped
        if time.monotonic() - self.checked < _STATE_SECONDS:
            return
        self.checked = time.monotonic()
        if (await self.store.encoding.get(self.job.id)).status is not JobState.RUNNING:
            raise JobStopped


class _RecordedTarget:
    """The target of a fill whose checkpoint is in the job's record, so that no mapping changes with it."""

    def __init__(self, run: _EncodingRun, held: FeatureLocation) -> None:
        self._run = run
        self._held = held
        self._target = target_of(run.store.engine, held)
        self.spec, self.doc_value_fields = held.spec, self._target.doc_value_fields
        self.refresh, self.marks, self.write = self._target.refresh, self._target.marks, self._target.write

    async def load(self) -> Checkpoint:
        """Return the checkpoint in the job's record."""
        return self._run.checkpoint.shards

    async def save(self, reached: Checkpoint) -> None:
        """Keep the checkpoint for the job's record."""
        await self._run.require_same(self._held)
        self._run.checkpoint = self._run.checkpoint.model_copy(update={"shards": dict(reached)})
        await self._run.save_sometimes()

    async def remove_orphans(self) -> int:
        """Remove the features of deleted documents, if a side index has more documents than its source."""
        if not self._held.side:
            return 0
        engine = self._run.store.engine
        await engine.refresh(self._held.index)
        own: Mapping[str, object] = {"bool": {"must_not": [{"term": {STATE: CHECKPOINT}}]}}
        if await engine.count(self._held.index, own) <= await engine.count(self._held.source.index):
            return 0
        return await self._target.remove_orphans()

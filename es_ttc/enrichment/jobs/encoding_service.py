"""Commands for jobs that encode: make, list, show, pause, resume, cancel. They use only the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.encoding_record import EncodingJob, EncodingProgress, EncodingRecord, encoding_job_id
from es_ttc.enrichment.jobs.followed_enrichment import cancel_enrichment
from es_ttc.enrichment.jobs.record import JobState, now
from es_ttc.enrichment.jobs.store import JobStore, VersionConflict
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.feature_locations import FeatureLocation, feature_location
from es_ttc.index.attach.source import count_between, positions
from es_ttc.index.mappings.attached import FAILED
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.indices import indices_behind
from es_ttc.index.mappings.spec import STATE


@dataclass(frozen=True, slots=True)
class EncodingStatus:
    """A job that encodes, with its progress."""

    job: EncodingJob
    progress: EncodingProgress

    @property
    def waits_for(self) -> None:
        """The job that is processed first: there is none, it has its own processes."""
        return

    @property
    def state(self) -> str:
        """Its state, in one word."""
        if self.job.status is not JobState.RUNNING:
            return self.job.status
        return "running" if self.progress.pending else "idle"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "kind": "encoding",
            **self.job.model_dump(mode="json", exclude={"status"}),
            "state": self.state,
            "waits_for": None,
            "progress": self.progress.model_dump(mode="json"),
        }


async def start_encoding(engine: Engine, jobs_index: str, index: str, name: str = "") -> EncodingStatus:
    """Make the job that encodes an index; one that is paused or cancelled runs again."""
    store = JobStore(engine, jobs_index)
    await store.prepare()
    job = EncodingJob(id=encoding_job_id(index), index=index, name=name)
    try:
        await store.create(job)
    except VersionConflict:
        job = await store.change_encoding(
            job.id, lambda present: _running(present).model_copy(update={"name": name or present.name})
        )
    return await encoding_status(store, job)


async def stop_encoding(engine: Engine, jobs_index: str, index: str) -> bool:
    """Cancel the job that encodes an index, and forget how far it has come; return whether there was one."""
    store = JobStore(engine, jobs_index)
    if not await engine.exists(jobs_index):
        return False
    name = encoding_job_id(index)
    if all(job.id != name or job.status.over for job in await store.encodings()):
        return False
    await store.change_encoding(name, _cancelled)
    await store.forget_encoded(name)
    return True


async def change_state(engine: Engine, jobs_index: str, name: str, status: JobState) -> EncodingStatus:
    """Pause, resume or cancel a job that encodes.

    Raises:
        UnknownJob: There is none of this name.
        InvalidRequest: It was cancelled.
    """
    store = JobStore(engine, jobs_index)

    def changed(job: EncodingJob) -> EncodingJob:
        if status is JobState.CANCELLED:
            return _cancelled(job)
        if job.status.over:
            raise InvalidRequest(
                f"job [{name}] was cancelled: `es-ttc index pipeline {job.index} --encode later` makes it again"
            )
        return job.model_copy(update={"status": status, "reason": ""})

    return await encoding_status(store, await store.change_encoding(name, changed))


async def encoding_status(store: JobStore, job: EncodingJob) -> EncodingStatus:
    """Return a job that encodes with its progress; one whose index is gone has no counts."""
    record = await store.encoded(job.id)
    trouble = await store.trouble(job.id) if job.status is JobState.RUNNING else ""
    total = pending = failed = 0
    try:
        held = await feature_location(store.engine, job.index)
    except InvalidRequest as error:
        trouble = trouble or str(error)
    else:
        total = await store.engine.count(held.source.index)
        pending = await _pending(store.engine, held, record)
        failed = await store.engine.count(held.index, {"term": {STATE: FAILED}})
    rate = record.written / record.encoder_seconds if record.encoder_seconds else 0.0
    progress = EncodingProgress(
        total=total,
        done=max(0, total - pending - failed),  # the record's own counts end with a worker that is killed
        failed=failed,
        pending=0 if job.status.over else pending,
        removed=record.removed,
        rate=rate,
        remaining=pending / rate if rate else None,
        trouble=trouble,
    )
    return EncodingStatus(job, progress)


async def _pending(engine: Engine, held: FeatureLocation, record: EncodingRecord) -> int:
    """Count the documents to encode: by their state, or as written since the checkpoint where that does not show it."""
    if held.side or "inside" in held.source.meta:
        same = (record.source, record.holder) == (held.source.uuid, held.index)
        return await count_between(
            engine, held.source, record.shards if same else {}, await positions(engine, held.source)
        )
    done = {"terms": {STATE: [READY, EMPTY, FAILED]}}
    return await engine.count(held.source.index, {"bool": {"must_not": [done]}})


async def start_next(store: JobStore, jobs: Sequence[EncodingJob]) -> list[EncodingJob]:
    """Make jobs for the indices that were added behind an alias or a data stream, and end those of deleted ones.

    The first turn of a new job prepares its index, and makes the job that enriches it.

    Returns:
        The running jobs.
    """
    running = {job.index: job for job in jobs}
    for name in sorted({job.name for job in jobs if job.name}):
        behind = {index.index for index in await indices_behind(store.engine, name)}
        if not behind:
            continue  # the name is gone: the jobs say so
        for index in sorted(behind - running.keys()):
            job = EncodingJob(id=encoding_job_id(index), index=index, name=name)
            try:
                await store.create(job)
            except VersionConflict:
                continue  # it was paused or cancelled
            running[index] = job
        for job in jobs:
            if job.name == name and job.index not in behind and not await store.engine.exists(job.index):
                await store.change_encoding(job.id, _cancelled)
                await store.forget_encoded(job.id)
                await cancel_enrichment(store.engine, store.jobs, job.index)
                del running[job.index]
    return list(running.values())


def _running(job: EncodingJob) -> EncodingJob:
    return job.model_copy(update={"status": JobState.RUNNING, "reason": "", "ended": None})


def _cancelled(job: EncodingJob) -> EncodingJob:
    return job.model_copy(update={"status": JobState.CANCELLED, "reason": "", "ended": job.ended or now()})

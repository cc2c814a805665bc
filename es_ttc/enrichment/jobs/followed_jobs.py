"""The two continuous jobs of an index whose writes are followed: one encodes what is written, the other enriches it."""

from collections.abc import Sequence
from contextlib import suppress

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import JobDocuments
from es_ttc.enrichment.jobs.indices import VersionConflict
from es_ttc.enrichment.jobs.progress import encoding_status, enrichment_progress
from es_ttc.enrichment.jobs.record import EncodingJob, Job, JobState, JobStatus, encoding_job_id, enrichment_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.index.mappings.enrichment import add_enrichment, enrichable
from es_ttc.index.mappings.indices import Index

_OF_ONE_JOB = frozenset(
    {"id", "index", "plan", "reason", "created", "started", "ended", "retried", "total", "filtered", "final"}
)


async def start_encoding(engine: Engine, jobs_index: str, index: str, name: str = "") -> JobStatus[EncodingJob]:
    """Make the job that encodes an index; one that is paused or cancelled runs again."""
    store = JobStore(engine, jobs_index)
    await store.indices.prepare()
    job = EncodingJob(id=encoding_job_id(index), index=index, name=name)
    try:
        await store.encoding.create(job)
    except VersionConflict:
        restarted = {"status": JobState.RUNNING, "reason": "", "ended": None, **({"name": name} if name else {})}
        job = await store.encoding.update(job.id, **restarted)
    return await encoding_status(store, job)


async def stop_encoding(store: JobStore, index: str) -> bool:
    """Cancel the job that encodes an index, and reset its checkpoint; return whether there was one."""
    name = encoding_job_id(index)
    job = await store.encoding.find(name)
    if job is None or job.status.over:
        return False
    await store.encoding.change(name, lambda job: job.changed_to(JobState.CANCELLED))
    await store.checkpoints.reset(name)
    return True


async def stop_enrichment(store: JobStore, index: str) -> None:
    """Cancel the job that enriches an index, if there is one; its counts are kept with it, as the index may be gone."""
    job = await store.enrichment.find(enrichment_job_id(index))
    if job is None or job.status.over:
        return
    ended = job.changed_to(JobState.CANCELLED)
    counts = await enrichment_progress(store, ended, None)
    await store.enrichment.update(job.id, status=ended.status, reason="", ended=ended.ended, final=counts.final())


async def start_next(store: JobStore, jobs: Sequence[EncodingJob]) -> list[EncodingJob]:
    """Make jobs for new indices behind an alias or a data stream, end those of deleted ones; return all that run."""
    running = {job.index: job for job in jobs}
    for name in sorted({job.name for job in jobs if job.name}):
        behind = {index.index for index in await Index.named(store.engine, name)}
        if not behind:
            continue  # the name is gone: the jobs say so
        for index in sorted(behind - running.keys()):
            job = EncodingJob(id=encoding_job_id(index), index=index, name=name)
            try:
                await store.encoding.create(job)
            except VersionConflict:
                continue  # it was paused or cancelled
            running[index] = job
        for job in jobs:
            if job.name == name and job.index not in behind and not await store.engine.exists(job.index):
                await stop_encoding(store, job.index)
                await stop_enrichment(store, job.index)
                del running[job.index]
    return list(running.values())


async def enrich_like(store: JobStore, before: str, index: str) -> bool:
    """Make the job that enriches a new index behind a name like an index before it; return whether there is one.

    It has the plan and the options of that job, and its budget anew. One that is paused is paused here too.
    """
    pattern = await store.enrichment.find(enrichment_job_id(before))
    if pattern is None or pattern.status.over:
        return False
    await add_enrichment(store.engine, index, (await enrichable(store.engine, before)).analyzer)
    name = enrichment_job_id(index)
    job = Job(
        **pattern.model_dump(include=set(Job.model_fields) - _OF_ONE_JOB),
        id=name,
        index=index,
        plan=pattern.plan.model_copy(update={"refreshed": 0}),
        reason=pattern.reason.replace(pattern.id, name),
    )
    documents = await JobDocuments.of(store.engine, index)
    job = job.model_copy(update={"total": await documents.pending(job)})
    with suppress(VersionConflict):  # another worker has made it, or a person has paused or cancelled it
        await store.enrichment.create(job)
    return True

"""The continuous job that enriches what is written to a followed index: made like that of the index before it."""

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import Documents
from es_ttc.enrichment.jobs.record import Job, JobState, now
from es_ttc.enrichment.jobs.store import JobStore, UnknownJob, VersionConflict
from es_ttc.index.mappings.enrichment import add_enrichment, enrichable


def enrichment_job_id(index: str) -> str:
    """Return the id of the job that enriches what is written to an index."""
    return f"enrich-{index}"


async def enrich_like(engine: Engine, jobs_index: str, before: str, index: str) -> bool:
    """Make the job that enriches a new index behind an alias or a data stream, like that of an index before it.

    It has the plan and the options of that job, and its budget anew. One that is paused is paused here too.

    Returns:
        Whether the index is enriched: not if the index before it is not, or no more.
    """
    store = JobStore(engine, jobs_index)
    try:
        pattern = await store.get(enrichment_job_id(before))
    except UnknownJob:
        return False
    if pattern.status.over:
        return False
    await add_enrichment(engine, index, (await enrichable(engine, before)).analyzer)
    name = enrichment_job_id(index)
    job = Job(
        **pattern.model_dump(include=set(Job.model_fields) - _OF_ONE_JOB),
        id=name,
        index=index,
        plan=pattern.plan.model_copy(update={"refreshed": 0}),
        reason=pattern.reason.replace(pattern.id, name),
    )
    job = job.model_copy(update={"total": await Documents(engine, await enrichable(engine, index)).pending(job)})
    try:
        await store.create(job)
    except VersionConflict:
        return True  # another worker has made it, or a person has paused or cancelled it
    return True


async def cancel_enrichment(engine: Engine, jobs_index: str, index: str) -> None:
    """Cancel the job that enriches an index, if there is one; its counts are kept with it, as the index may be gone."""
    if not await engine.exists(jobs_index):
        return
    store = JobStore(engine, jobs_index)
    try:
        job = await store.get(enrichment_job_id(index))
    except UnknownJob:
        return
    if job.status.over:
        return
    ended = {"status": JobState.CANCELLED, "reason": "", "ended": now()}
    counts = await store.progress(job.model_copy(update=ended), _none_pending)
    final = counts.model_dump(mode="json", exclude={"trouble", "remaining"})
    await store.change(job.id, lambda record: record.model_copy(update={**ended, "final": final}))


_OF_ONE_JOB = frozenset(
    {"id", "index", "plan", "reason", "created", "started", "ended", "retried", "total", "filtered", "final"}
)


async def _none_pending(_: Job) -> int:
    return 0

"""Commands for jobs of both kinds: list, show, pause, resume, cancel, retry. They use only the engine."""

from collections.abc import Sequence

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.progress import AnyStatus, encoding_status, enrichment_status, status_of
from es_ttc.enrichment.jobs.record import Budget, Job, JobState, JobStatus, is_encoding, now
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.submission import with_model
from es_ttc.errors import InvalidRequest
from es_ttc.settings import Settings


async def listed(engine: Engine, settings: Settings, status: Sequence[str] = ()) -> list[AnyStatus]:
    """Return jobs with their counts: those that encode, then those that enrich, the newest of each first."""
    store = JobStore(engine, settings.jobs_index)
    encoding = [await encoding_status(store, job) for job in await store.encoding.list(status)]
    return [*encoding, *[await enrichment_status(store, job) for job in await store.enrichment.list(status)]]


async def unattended(engine: Engine, settings: Settings) -> str:
    """Return why running jobs wait, if no worker has looked for work lately; empty if one has."""
    return await JobStore(engine, settings.jobs_index).leases.unattended()


async def shown_job(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """Return a job with its progress."""
    store = JobStore(engine, settings.jobs_index)
    return await status_of(store, await store.jobs_like(name).get(name))


async def pause(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """Pause a job: documents in progress are finished, no further one is begun."""
    return await _change(engine, settings, name, JobState.PAUSED)


async def cancel(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """End a job; its features and its enrichment stay."""
    return await _change(engine, settings, name, JobState.CANCELLED)


async def resume(
    engine: Engine, settings: Settings, name: str, *, tokens: int | None = None, cost: float | None = None
) -> AnyStatus:
    """Resume a paused job; one that enriches may get another budget."""
    if is_encoding(name):
        if tokens is not None or cost is not None:
            raise InvalidRequest(f"job [{name}] encodes, which costs no tokens: resume it without a budget")
        return await _change(engine, settings, name, JobState.RUNNING)
    store = JobStore(engine, settings.jobs_index)
    plan = (await store.enrichment.get(name)).plan
    if not plan.model:
        plan = await with_model(settings, plan)
        await store.enrichment.update(name, plan=plan)

    def resumed(job: Job) -> Job:
        budget = Budget(
            tokens=job.budget.tokens if tokens is None else tokens, cost=job.budget.cost if cost is None else cost
        )
        return job.changed_to(JobState.RUNNING).model_copy(update={"budget": budget})

    return await enrichment_status(store, await store.enrichment.change(name, resumed))


async def retry(engine: Engine, settings: Settings, name: str) -> JobStatus[Job]:
    """Process failed documents once more; a job that has ended runs again."""
    store = JobStore(engine, settings.jobs_index)
    if is_encoding(name):
        index = (await store.encoding.get(name)).index
        raise InvalidRequest(f"job [{name}] encodes: `es-ttc fill {index} --all` checks its failed documents again")
    job = await store.enrichment.get(name)
    if job.status is JobState.CANCELLED:
        raise InvalidRequest(f"job [{name}] was cancelled: submit it again with `es-ttc jobs submit {job.index}`")
    if not await store.outcomes.forget_failures(name) and job.status is not JobState.PAUSED:
        raise InvalidRequest(f"no document of job [{name}] has failed: there is nothing to retry")
    restarted = {"status": JobState.RUNNING, "reason": "", "ended": None, "final": None, "retried": now()}
    return await enrichment_status(store, await store.enrichment.update(name, **restarted))


async def _change(engine: Engine, settings: Settings, name: str, status: JobState) -> AnyStatus:
    store = JobStore(engine, settings.jobs_index)
    return await status_of(store, await store.jobs_like(name).change(name, lambda job: job.changed_to(status)))

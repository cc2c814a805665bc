"""Commands for jobs of both kinds: those that encode and those that enrich."""

from collections.abc import Sequence

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import encoding_service, service
from es_ttc.enrichment.jobs.encoding_record import is_encoding
from es_ttc.enrichment.jobs.encoding_service import EncodingStatus
from es_ttc.enrichment.jobs.record import JobState
from es_ttc.enrichment.jobs.service import JobStatus
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.errors import InvalidRequest
from es_ttc.settings import Settings

AnyStatus = JobStatus | EncodingStatus


async def listed(engine: Engine, settings: Settings, status: Sequence[str] = ()) -> list[AnyStatus]:
    """Return jobs with their counts: those that encode, then those that enrich, the newest of each first."""
    store = JobStore(engine, settings.jobs_index)
    encoding = [await encoding_service.encoding_status(store, job) for job in await store.encodings(status=status)]
    return [*encoding, *await service.listed(engine, settings, status)]


async def unattended(engine: Engine, settings: Settings) -> str:
    """Return why running jobs wait, if no worker has looked for work lately; empty if one has."""
    return await JobStore(engine, settings.jobs_index).unattended()


async def shown(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """Return a job with its progress.

    Raises:
        UnknownJob: There is none of this name.
    """
    if is_encoding(name):
        store = JobStore(engine, settings.jobs_index)
        return await encoding_service.encoding_status(store, await store.encoding(name))
    return await service.shown(engine, settings, name)


async def pause(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """Pause a job: documents in progress are finished, no further one is begun."""
    if is_encoding(name):
        return await encoding_service.change_state(engine, settings.jobs_index, name, JobState.PAUSED)
    return await service.pause(engine, settings, name)


async def cancel(engine: Engine, settings: Settings, name: str) -> AnyStatus:
    """End a job; its features and its enrichment stay."""
    if is_encoding(name):
        return await encoding_service.change_state(engine, settings.jobs_index, name, JobState.CANCELLED)
    return await service.cancel(engine, settings, name)


async def resume(
    engine: Engine, settings: Settings, name: str, *, tokens: int | None = None, cost: float | None = None
) -> AnyStatus:
    """Resume a paused job; one that enriches may get another budget.

    Raises:
        InvalidRequest: The job was cancelled, or it encodes and a budget was given.
    """
    if not is_encoding(name):
        return await service.resume(engine, settings, name, tokens=tokens, cost=cost)
    if tokens is not None or cost is not None:
        raise InvalidRequest(f"job [{name}] encodes, which costs no tokens: resume it without a budget")
    return await encoding_service.change_state(engine, settings.jobs_index, name, JobState.RUNNING)


async def retry(engine: Engine, settings: Settings, name: str) -> JobStatus:
    """Process failed documents once more; a job that has ended runs again.

    Raises:
        InvalidRequest: None has failed, or the job encodes.
    """
    if is_encoding(name):
        index = (await JobStore(engine, settings.jobs_index).encoding(name)).index
        raise InvalidRequest(f"job [{name}] encodes: `es-ttc fill {index} --all` checks its failed documents again")
    return await service.retry(engine, settings, name)

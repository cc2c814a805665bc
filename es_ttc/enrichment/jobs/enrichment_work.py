"""Jobs that enrich: the partitions that wait for a worker, the turns at them, and the end of a job."""

from contextlib import aclosing
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import JobDocuments, document_pages
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.outcomes import DocumentResult
from es_ttc.enrichment.jobs.progress import enrichment_progress
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, JobState
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import Turn, TurnEnd, stop_job
from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.errors import EngineUnavailable, EsTtcError
from es_ttc.index.attach.source import positions
from es_ttc.index.mappings.indices import Index
from es_ttc.settings import Settings

_IDLE_SECONDS = 3600
_SPARE_SECONDS = 60.0
_LOADING_SECONDS = 1800.0  # maximum time in which a worker with its own model may load or download it


class EnrichmentWork:
    """The work of jobs that enrich; see :class:`~es_ttc.enrichment.jobs.turn.Work`."""

    name = "turn"
    queued_seconds = 60
    sweep_share = 4.0  # if the engine is slow, sweeps must not block turns in the same processes

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.queue = f"es-ttc-{settings.jobs_index}"
        self.max_seconds = settings.jobs_turn_seconds + 2 * settings.llm_timeout * settings.llm_attempts
        self.max_seconds += _SPARE_SECONDS + (_LOADING_SECONDS if settings.llm_offline is not None else 0.0)

    async def take_turn(self, store: JobStore, redis: Any, turn: Turn) -> TurnEnd:
        """Enrich the documents of one partition for a while; end the job if none is left."""
        end = await take_turn(store, self._settings, redis, turn.job, turn.partition)
        if end is TurnEnd.NOTHING_LEFT:
            await finish(store, turn.job)
        return end

    async def waiting(self, store: JobStore, redis: Any) -> list[Turn]:
        """Return the partitions of jobs that need a worker; end the jobs that have nothing left to do."""
        waiting: list[Turn] = []
        for job in await store.enrichment.list([JobState.RUNNING]):
            try:
                due = await (is_continuous_due(store, redis, job) if job.continuous else _is_due(store, job))
                if due:
                    partitions = await store.leases.free([(job.id, partition) for partition in range(job.lanes)])
                    waiting += [Turn(*partition, job.priority) for partition in partitions]
            except EngineUnavailable:
                raise
            except EsTtcError as error:  # its index was deleted, or lost its field
                await stop_job(store, job.id, str(error))
        return waiting


async def _is_due(store: JobStore, job: Job) -> bool:
    if await store.turn_of(job) is not None:
        return False
    documents = await JobDocuments.of(store.engine, job.index)
    if (await enrichment_progress(store, job, await documents.pending(job))).pending:
        return True
    await finish(store, job.id)
    return False


async def is_continuous_due(store: JobStore, redis: Any, job: Job) -> bool:
    """Return whether a continuous job needs a worker, without a search while the sequence numbers stand still."""
    idle = f"ttc:idle:{job.id}"
    reached = f"{await _position(store.engine, job.index)} {job.plan.key} {job.retried}"
    seen = await redis.get(idle)
    if seen is not None and seen.decode() == reached:
        return False
    if await store.turn_of(job) is not None:
        return False
    documents = await JobDocuments.of(store.engine, job.index)
    await documents.refresh()
    if (await enrichment_progress(store, job, await documents.pending(job))).pending:
        return True
    total = 0 if job.refresh is None else await store.engine.count(job.index)
    if total and (job.filtered == 0 or job.refresh_due(total)):
        await store.enrichment.change(job.id, lambda record: _refreshed(record, total))
    else:
        await redis.set(idle, reached, ex=_IDLE_SECONDS)
    return False


def _refreshed(job: Job, documents: int) -> Job:
    """Return a job whose stored proposals are filtered again; the first time only the number of documents is noted."""
    if job.filtered == 0:
        return job.model_copy(update={"filtered": documents})
    plan = job.plan.model_copy(update={"refreshed": job.plan.refreshed + 1})
    return job.model_copy(update={"filtered": documents, "plan": Plan.model_validate(plan.model_dump())})


async def _position(engine: Engine, index: str) -> str:
    source = await Index.only(engine, index)
    return f"{source.uuid} {sorted((await positions(engine, source)).items())}"


_UNFINISHED = (DocumentOutcome.DONE, DocumentOutcome.DEFERRED)  # a document done and not enriched has changed


async def finish(store: JobStore, job_id: str) -> bool:
    """End a job if nothing is left to do, with exact counts; return whether it has ended."""
    job = await store.enrichment.get(job_id)
    if job.status is not JobState.RUNNING or job.continuous:
        return False
    documents = await JobDocuments.of(store.engine, job.index)
    await documents.refresh()
    progress = await enrichment_progress(store, job, await documents.pending(job))
    if progress.pending or await _is_unfinished(store, documents, job):
        return False
    if await documents.written_by(job.id) > progress.done:
        await _store_lost_outcomes(store, documents, job)
        progress = await enrichment_progress(store, job, await documents.pending(job))

    def ended(record: Job) -> Job | None:
        if record.status is not JobState.RUNNING:
            return None
        return record.changed_to(JobState.COMPLETED).model_copy(update={"final": progress.final()})

    return (await store.enrichment.change(job_id, ended)).status is JobState.COMPLETED


async def _store_lost_outcomes(store: JobStore, documents: JobDocuments, job: Job) -> None:
    """Store the outcomes of documents that killed workers wrote: a document names the job that wrote it."""
    async with aclosing(document_pages(documents.keys_written_by(job.id))) as found:
        async for page in found:
            outcomes = await store.outcomes.get(job.id, page)
            lost = [
                key
                for key, note in zip(page, outcomes, strict=True)
                if note is None or note["outcome"] != DocumentOutcome.DONE
            ]
            texts = await documents.texts(lost) if lost else []
            proposals = await store.proposals.get(job.plan.asked, [text.hash for text in texts])
            results = []
            for text, proposal in zip(texts, proposals, strict=True):
                paid = proposal if proposal is not None and proposal.was_paid_by(job.id, text.key[0]) else None
                read, written = (paid.read, paid.written) if paid else (0, 0)
                results.append(
                    DocumentResult(*text.key, DocumentOutcome.DONE, read=read, written=written, reused=paid is None)
                )
            await store.outcomes.put(job.id, results)


async def _is_unfinished(store: JobStore, documents: JobDocuments, job: Job) -> bool:
    async with aclosing(document_pages(documents.keys(job, None))) as found:
        async for page in found:
            notes = await store.outcomes.get(job.id, page)
            if any(note is None or note["outcome"] in _UNFINISHED for note in notes):
                return True
    return False

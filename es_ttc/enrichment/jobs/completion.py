"""The end of a job that enriches: all its documents are processed, and its counts are exact."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import Documents, Key
from es_ttc.enrichment.jobs.outcomes import DocumentResult
from es_ttc.enrichment.jobs.progress import enrichment_progress
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, JobState
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.index.mappings.enrichment import enrichable
from es_ttc.settings import Settings

_PAGE = 500
_UNFINISHED = (DocumentOutcome.DONE, DocumentOutcome.DEFERRED)
"""Outcomes of documents that are to be processed again: one that is done and not enriched has changed since."""


async def finish(engine: Engine, settings: Settings, job_id: str) -> bool:
    """End a job if nothing is left to do, with exact counts; return whether it has ended."""
    store = JobStore(engine, settings.jobs_index)
    job = await store.enrichment.get(job_id)
    if job.status is not JobState.RUNNING or job.continuous:
        return False
    documents = Documents(engine, await enrichable(engine, job.index))
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


async def _store_lost_outcomes(store: JobStore, documents: Documents, job: Job) -> None:
    """Store the outcomes of documents written by workers that were killed before they stored them.

    The documents themselves contain the job that wrote them.
    """
    async with aclosing(_pages(documents.keys_written_by(job.id))) as pages:
        async for page in pages:
            noted = await store.outcomes.get(job.id, page)
            lost = [
                key
                for key, note in zip(page, noted, strict=True)
                if note is None or note["outcome"] != DocumentOutcome.DONE
            ]
            texts = await documents.texts(lost) if lost else []
            proposals = await store.proposals.get(job.plan.asked, [text.hash for text in texts])
            results = []
            for text, proposal in zip(texts, proposals, strict=True):
                paid = proposal if proposal is not None and proposal.paid_for(job.id, text.key[0]) else None
                read, written = (paid.read, paid.written) if paid else (0, 0)
                results.append(
                    DocumentResult(*text.key, DocumentOutcome.DONE, read=read, written=written, reused=paid is None)
                )
            await store.outcomes.put(job.id, results)


async def _is_unfinished(store: JobStore, documents: Documents, job: Job) -> bool:
    async with aclosing(_pages(documents.keys(job, None))) as pages:
        async for page in pages:
            notes = await store.outcomes.get(job.id, page)
            if any(note is None or note["outcome"] in _UNFINISHED for note in notes):
                return True
    return False


async def _pages(keys: AsyncGenerator[Key]) -> AsyncGenerator[list[Key]]:
    page: list[Key] = []
    async with aclosing(keys):
        async for key in keys:
            page.append(key)
            if len(page) == _PAGE:
                yield page
                page = []
    if page:
        yield page

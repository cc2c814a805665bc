"""The progress of jobs, counted in the engine on request."""

from collections.abc import Mapping
from typing import Any

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import JobDocuments
from es_ttc.enrichment.jobs.outcomes import RATE_SECONDS
from es_ttc.enrichment.jobs.record import (
    DocumentOutcome,
    EncodingCheckpoint,
    EncodingJob,
    Job,
    JobState,
    JobStatus,
    Progress,
    now,
)
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.errors import InvalidRequest, MissingFeature
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices
from es_ttc.index.attach.source import count_between, positions
from es_ttc.index.mappings.attached import FAILED
from es_ttc.index.mappings.fields import EMPTY, READY
from es_ttc.index.mappings.spec import STATE

AnyStatus = JobStatus[Job] | JobStatus[EncodingJob]
ENCODED = {"terms": {STATE: [READY, EMPTY, FAILED]}}  # query for the documents that have been encoded, or cannot be


async def status_of(store: JobStore, job: Job | EncodingJob) -> AnyStatus:
    """Return a job with its progress."""
    return await (encoding_status(store, job) if isinstance(job, EncodingJob) else enrichment_status(store, job))


async def enrichment_status(store: JobStore, job: Job) -> JobStatus[Job]:
    """Return a job that enriches with its progress; counts of a job that has ended are those of its end."""
    if job.final is not None:
        return JobStatus(job, Progress.model_validate({**job.final, "trouble": "", "remaining": None}))
    first = await store.turn_of(job) if job.status is JobState.RUNNING else None
    unenriched: int | None = None
    trouble = ""
    if not job.status.over:
        try:
            documents = await JobDocuments.of(store.engine, job.index)
            unenriched = await documents.pending(job)
        except (InvalidRequest, MissingFeature) as error:  # the index was deleted, or lost its field
            trouble = str(error)
    progress = await enrichment_progress(store, job, unenriched)
    if trouble and not progress.trouble:
        progress = progress.model_copy(update={"trouble": trouble})
    return JobStatus(job, progress, first.id if first else None)


async def enrichment_progress(store: JobStore, job: Job, unenriched: int | None) -> Progress:
    """Count a job's progress, given the documents without its enrichment: None if it has ended or they are unknown."""
    found = await store.outcomes.counts(job.id)
    by_outcome = {bucket["key"]: bucket["doc_count"] for bucket in found["outcomes"]["buckets"]}
    done, failed = by_outcome.get(DocumentOutcome.DONE, 0), by_outcome.get(DocumentOutcome.FAILED, 0)
    skipped = by_outcome.get(DocumentOutcome.SKIPPED, 0)
    pending = 0 if unenriched is None else max(0, unenriched - failed - skipped)
    if unenriched is not None:  # a document that is to be enriched again has an outcome too
        documents = await store.engine.count(job.index, job.query or None)
        done = max(0, min(done, documents - failed - skipped - pending))
    total = done + failed + skipped + pending
    if job.continuous or job.status is JobState.CANCELLED:
        total = max(job.total, total)
    rate = found["recent"]["doc_count"] / RATE_SECONDS
    if job.started is not None:
        rate *= RATE_SECONDS / max(1.0, min(RATE_SECONDS, (now() - job.started).total_seconds()))
    read, written = int(found["read"]["value"]), int(found["written"]["value"])
    return Progress(
        total=total,
        done=done,
        failed=failed,
        skipped=skipped,
        deferred=by_outcome.get(DocumentOutcome.DEFERRED, 0),
        pending=pending,
        reused=found["reused"]["doc_count"],
        read=read,
        written=written,
        cost=job.price.of(read, written),
        rate=rate,
        remaining=pending / rate if rate else None,
        phrases=int(found["phrases"]["value"]),
        errors=[_error(bucket) for bucket in found["errors"]["kinds"]["buckets"]],
        trouble=await _trouble(store, job),
    )


async def encoding_status(store: JobStore, job: EncodingJob) -> JobStatus[EncodingJob]:
    """Return a job that encodes with its progress; one whose index is gone has no counts."""
    checkpoint = await store.checkpoints.get(job.id)
    trouble = await _trouble(store, job)
    total = unencoded = failed = 0
    try:
        held = (await Indices.behind(store.engine, job.index)).only()
    except InvalidRequest as error:
        trouble = trouble or str(error)
    else:
        total = await store.engine.count(held.source.index)
        unencoded = await _unencoded(store.engine, held, checkpoint)
        failed = await store.engine.count(held.index, {"term": {STATE: FAILED}})
    rate = checkpoint.written / checkpoint.encoder_seconds if checkpoint.encoder_seconds else 0.0
    progress = Progress(
        total=total,
        done=max(0, total - unencoded - failed),  # the checkpoint's counts end with a worker that is killed
        failed=failed,
        pending=0 if job.status.over else unencoded,
        removed=checkpoint.removed,
        rate=rate,
        remaining=unencoded / rate if rate else None,
        trouble=trouble,
    )
    return JobStatus(job, progress)


async def _trouble(store: JobStore, job: Job | EncodingJob) -> str:
    return await store.leases.trouble(job.id) if job.status is JobState.RUNNING else ""


async def _unencoded(engine: Engine, held: FeatureLocation, checkpoint: EncodingCheckpoint) -> int:
    """Count the documents to encode: by their state, or as written since the checkpoint where that does not show it."""
    if held.side:
        shards = checkpoint.shards if checkpoint.is_of(held.source.uuid, held.index) else {}
        return await count_between(engine, held.source, shards, await positions(engine, held.source))
    return await engine.count(held.source.index, {"bool": {"must_not": [ENCODED]}})


def _error(bucket: Mapping[str, Any]) -> dict[str, Any]:
    samples = [hit["_source"] for hit in bucket["samples"]["hits"]["hits"]]
    return {"kind": bucket["key"], "documents": bucket["doc_count"], "samples": samples}

"""Submission of jobs that enrich: the request, its checks, a dry run. It uses only the engine and the model."""

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import DocumentText, JobDocuments
from es_ttc.enrichment.jobs.indices import VersionConflict
from es_ttc.enrichment.jobs.progress import enrichment_status
from es_ttc.enrichment.jobs.record import Job, JobSpec, JobState, JobStatus
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.proposals.document_frequency import check_tau
from es_ttc.enrichment.proposals.filtering import FilteredPhrases, filtered
from es_ttc.enrichment.proposals.plan import DEFAULT_PROMPTS, Parameters, Plan, checked_text, prompt_of
from es_ttc.enrichment.proposals.proposing import NoReadableProposal
from es_ttc.enrichment.proposals.relevance import phrase_relevance
from es_ttc.errors import ConfigurationError, EngineError, InvalidRequest, LlmError
from es_ttc.index.mappings.enrichment import EnrichmentTarget, enrichable
from es_ttc.llm import Usage, model_for_jobs
from es_ttc.settings import Settings

_MODEL_SECONDS = 10.0
_SAMPLED_FROM = 1_000


class JobRequest(JobSpec, Parameters):
    """The request for a job."""

    prompt: str | None = Field(
        None,
        description="Prompt: general, claims, arguments, duplicates or questions; base for a model that only continues "
        "texts; doc2query or doc2query-base for whole queries; on the command line also a file with {{document}}. "
        "Default: general, or base if ES_TTC_LLM_API is completions.",
    )
    prompt_text: str | None = Field(None, description="Text of a prompt, in place of a name.")


@dataclass(frozen=True, slots=True)
class SampledDocument:
    """One document of a dry run."""

    text: DocumentText
    proposals: tuple[str, ...]
    filtered: FilteredPhrases
    usage: Usage
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """A sample, and an estimate of the whole job."""

    documents: Sequence[SampledDocument]
    pending: int
    read: int
    written: int
    cost: float
    seconds: float

    def reached(self, share: float) -> float | None:
        """Return the similarity to their documents that a share of the phrases reaches; None if none was compared."""
        found = sorted(
            (similarity for each in self.documents for similarity in each.filtered.similarities), reverse=True
        )
        return found[min(len(found) - 1, int(share * len(found)))] if found else None


async def submit_job(engine: Engine, settings: Settings, request: JobRequest) -> JobStatus[Job]:
    """Check a request and write the record of its job, where workers find it."""
    target, plan = await _checked(engine, settings, request)
    store = JobStore(engine, settings.jobs_index)
    await store.indices.prepare()
    job = await _job(f"enrich-{secrets.token_hex(4)}", JobDocuments(engine, target), plan, request)
    await store.enrichment.create(job)
    return await enrichment_status(store, job)


async def dry_run(engine: Engine, settings: Settings, request: JobRequest, sample: int) -> DryRun:
    """Enrich a sample without writing it, and estimate the job; the model's answers are stored and reused."""
    target, plan = await _checked(engine, settings, request)
    relevance = await phrase_relevance(plan, target, settings)
    store = JobStore(engine, settings.jobs_index)
    await store.indices.prepare()
    documents = JobDocuments(engine, target)
    job = await _job("dry-run", documents, plan, request)
    texts = await _sample(documents, job, sample)
    found: list[tuple[DocumentText, tuple[str, ...], Usage, str]] = []
    seconds, asked = 0.0, 0
    stored = await store.proposals.get(plan.asked, [text.hash for text in texts])
    async with model_for_jobs(settings) as llm:
        for text, proposal in zip(texts, stored, strict=True):
            if proposal is not None:
                found.append((text, proposal.phrases, Usage(proposal.read, proposal.written), ""))
                continue
            asked += 1
            begun = time.monotonic()
            try:
                new = await store.proposals.propose(llm, job, text)
            except NoReadableProposal as error:
                found.append((text, (), error.usage, str(error)))
            else:
                found.append((text, new.phrases, Usage(new.read, new.written), ""))
            seconds += time.monotonic() - begun
    left = await filtered(engine, target, plan, [(phrases, text.fields) for text, phrases, _, _ in found], relevance)
    sampled = [
        SampledDocument(text, phrases, kept, usage, problem)
        for (text, phrases, usage, problem), kept in zip(found, left, strict=True)
    ]
    share = job.total / max(1, len(sampled))
    read = round(share * sum(each.usage.prompt_tokens for each in sampled))
    written = round(share * sum(each.usage.completion_tokens for each in sampled))
    whole = job.total * seconds / max(1, asked)
    return DryRun(sampled, job.total, read, written, request.price.of(read, written), whole)


async def _sample(documents: JobDocuments, job: Job, size: int) -> list[DocumentText]:
    """Return the texts of documents among the first that a job would enrich, the same every time."""
    keys = []
    async with aclosing(documents.keys(job, None)) as found:
        async for key in found:
            keys.append(key)
            if len(keys) == max(size, _SAMPLED_FROM):
                break
    chosen = random.Random(0).sample(keys, min(size, len(keys)))  # noqa: S311 - not for secrets
    return [text for text in await documents.texts(chosen) if text.text] if chosen else []


async def submit_continuous(
    engine: Engine, settings: Settings, request: JobRequest, name: str, named: frozenset[str]
) -> JobStatus[Job]:
    """Make the one continuous job of a name; without a model it is paused, with the reason.

    A job of this name that has not ended stays as it is, but for the named options; one that waits for a model begins
    if there is one now.
    """
    check_tau(request.tau)
    target = await enrichable(engine, request.index)
    prompt = prompt_of(request.prompt or DEFAULT_PROMPTS[settings.llm_api])
    chosen = {field: getattr(request, field) for field in Parameters.model_fields}
    plan = Plan(prompt=prompt.name, text=prompt.text, model="", api=settings.llm_api, **chosen)
    reason = ""
    try:
        plan = await with_model(settings, plan)
    except (ConfigurationError, LlmError) as error:
        reason = f"{error}; then `es-ttc jobs resume {name}`"
    store = JobStore(engine, settings.jobs_index)
    await store.indices.prepare()
    status = JobState.PAUSED if reason else JobState.RUNNING
    job = await _job(name, JobDocuments(engine, target), plan, request)
    job = job.model_copy(update={"status": status, "reason": reason})

    def restarted(present: Job) -> Job:
        if present.status.over or not present.plan.model:
            return job
        changes = {option: getattr(request, option) for option in named - {"prompt"}}
        if "prompt" in named and not reason:
            changes["plan"] = plan
        return present.model_copy(update=changes)

    try:
        await store.enrichment.create(job)
    except VersionConflict:
        job = await store.enrichment.change(name, restarted)
    return await enrichment_status(store, job)


async def with_model(settings: Settings, plan: Plan) -> Plan:
    """Return a plan with the model that is configured now; a default prompt becomes that of its API."""
    async with model_for_jobs(settings) as llm:
        model, api = await llm.model(seconds=_MODEL_SECONDS), llm.api
    prompt = prompt_of(DEFAULT_PROMPTS[api]) if plan.prompt in DEFAULT_PROMPTS.values() else None
    text = {"prompt": prompt.name, "text": prompt.text} if prompt else {}
    return Plan.model_validate({**plan.model_dump(), **text, "model": model, "api": api})


async def _checked(engine: Engine, settings: Settings, request: JobRequest) -> tuple[EnrichmentTarget, Plan]:
    check_tau(request.tau)
    if request.prompt_text is not None:
        prompt = checked_text(request.prompt or "own", request.prompt_text)
    else:
        prompt = prompt_of(request.prompt or DEFAULT_PROMPTS[settings.llm_api])
    target = await enrichable(engine, request.index)
    await _check_query(engine, target, request.query)
    async with model_for_jobs(settings) as llm:
        try:
            model = await llm.model(seconds=_MODEL_SECONDS)
            if settings.llm_model is not None:
                await llm.models(seconds=_MODEL_SECONDS)
        except LlmError as error:
            raise LlmError(f"nothing is submitted: {error}", error.failure, status=error.upstream_status) from error
        api = llm.api
    chosen = {field: getattr(request, field) for field in Parameters.model_fields}
    compared = None if request.min_similarity is None else target.spec.encoder.key
    return target, Plan(prompt=prompt.name, text=prompt.text, model=model, api=api, encoder=compared, **chosen)


async def _check_query(engine: Engine, target: EnrichmentTarget, query: Mapping[str, Any] | None) -> None:
    if query is None:
        return
    try:
        await engine.count(target.index, query)
    except EngineError as error:
        if error.upstream_status == 400:
            raise InvalidRequest(f"[query] is no query of the engine: {error}") from error
        raise


async def _job(name: str, documents: JobDocuments, plan: Plan, request: JobRequest) -> Job:
    """Return the record of a job, with the number of documents to enrich."""
    spec = {field: getattr(request, field) for field in JobSpec.model_fields}
    job = Job(**{**spec, "index": documents.target.index}, id=name, plan=plan)
    return job.model_copy(update={"total": await documents.pending(job)})

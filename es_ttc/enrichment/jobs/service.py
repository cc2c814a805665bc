"""Commands for jobs: submit, list, show, pause, resume, cancel, retry, dry run. They use only the engine."""

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.documents import Documents, DocumentText
from es_ttc.enrichment.jobs.record import Job, JobProgress, JobSpec, JobState, now
from es_ttc.enrichment.jobs.store import JobStore, StoredProposal, VersionConflict
from es_ttc.enrichment.proposals.document_frequency import check_tau
from es_ttc.enrichment.proposals.filtering import FilteredPhrases, filtered
from es_ttc.enrichment.proposals.plan import DEFAULT_PROMPTS, Parameters, Plan, checked_text, prompt_of
from es_ttc.enrichment.proposals.proposing import NoReadableProposal, propose
from es_ttc.enrichment.proposals.relevance import relevance_of
from es_ttc.errors import ConfigurationError, EngineError, InvalidRequest, LlmError
from es_ttc.index.mappings.enrichment import EnrichmentTarget, enrichable
from es_ttc.llm import Usage, model_for_jobs
from es_ttc.settings import Settings

_MODEL_SECONDS = 10.0
_SAMPLED_FROM = 1_000


class JobRequest(JobSpec, Parameters):
    """The request for a job."""

    prompt: str | None = Field(
        None, description="Name of a prompt; on the command line also a file. Default: that of the API."
    )
    prompt_text: str | None = Field(None, description="Text of a prompt, in place of a name.")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job with its progress."""

    job: Job
    progress: JobProgress
    waits_for: str | None

    @property
    def state(self) -> str:
        """Its state, in one word."""
        if self.job.status is not JobState.RUNNING:
            return self.job.status
        if self.waits_for:
            return "waiting"
        return "idle" if self.job.continuous and not self.progress.pending else "running"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form, with name and version of the prompt."""
        plan = self.job.plan.model_dump(mode="json", exclude={"text"})
        record = self.job.model_dump(mode="json", exclude={"plan", "status", "final"})
        prompt = {"prompt_version": self.job.plan.template.version, "key": self.job.plan.key}
        return {
            **record,
            "state": self.state,
            "waits_for": self.waits_for,
            "plan": {**plan, **prompt},
            "progress": {**self.progress.model_dump(mode="json"), "tokens": self.progress.tokens},
        }


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
        found = sorted((one for each in self.documents for one in each.filtered.similarities), reverse=True)
        return found[min(len(found) - 1, int(share * len(found)))] if found else None


async def submit(engine: Engine, settings: Settings, request: JobRequest) -> JobStatus:
    """Check a request and write the record of its job, where workers find it.

    Raises:
        InvalidRequest: A value is invalid.
        MissingFeature: The index has no field for enrichment.
        ConfigurationError: No model is configured, or there is no such prompt.
        LlmError: The model's endpoint does not answer.
    """
    target, plan = await _checked(engine, settings, request)
    store = JobStore(engine, settings.jobs_index)
    await store.prepare()
    job = _job(f"enrich-{secrets.token_hex(4)}", target, plan, request)
    documents = Documents(engine, target)
    job = job.model_copy(update={"total": await documents.pending(job)})
    await store.create(job)
    return await _status_of(store, documents, job)


async def listed(engine: Engine, settings: Settings, status: Sequence[str] = ()) -> list[JobStatus]:
    """Return jobs, the newest first, with their counts."""
    store = JobStore(engine, settings.jobs_index)
    return [await shown(engine, settings, job.id) for job in await store.listed(status=status)]


async def shown(engine: Engine, settings: Settings, name: str) -> JobStatus:
    """Return a job with its progress.

    Raises:
        UnknownJob: There is none of this name.
    """
    store = JobStore(engine, settings.jobs_index)
    job = await store.get(name)
    if job.final is not None:
        return JobStatus(job, JobProgress.model_validate({**job.final, "trouble": "", "remaining": None}), None)
    return await _status_of(store, await _documents(engine, job), job)


async def pause(engine: Engine, settings: Settings, name: str) -> JobStatus:
    """Pause a job: documents in progress are finished, no further one is begun."""
    return await _change(engine, settings, name, JobState.PAUSED, ("running", "paused"))


async def cancel(engine: Engine, settings: Settings, name: str) -> JobStatus:
    """End a job; its enrichment stays."""
    return await _change(engine, settings, name, JobState.CANCELLED, ("running", "paused", "cancelled"))


async def resume(
    engine: Engine, settings: Settings, name: str, *, tokens: int | None = None, cost: float | None = None
) -> JobStatus:
    """Resume a paused job; it may get another budget.

    Raises:
        InvalidRequest: The job has ended.
        ConfigurationError: The job was made without a model, and none is configured.
        LlmError: The job was made without a model, and the model's endpoint does not answer.
    """
    plan = (await JobStore(engine, settings.jobs_index).get(name)).plan
    if not plan.model:
        await _set_plan(engine, settings, name, await _with_model(settings, plan))
    changes = {key: value for key, value in (("tokens", tokens), ("cost", cost)) if value is not None}
    return await _change(engine, settings, name, JobState.RUNNING, ("running", "paused"), changes)


async def retry(engine: Engine, settings: Settings, name: str) -> JobStatus:
    """Process failed documents once more; a job that has ended runs again.

    Raises:
        InvalidRequest: None has failed.
    """
    store = JobStore(engine, settings.jobs_index)
    job = await store.get(name)
    if job.status is JobState.CANCELLED:
        raise InvalidRequest(f"job [{name}] was cancelled: submit it again with `es-ttc jobs submit {job.index}`")
    if not await store.forget_failures(name) and job.status is not JobState.PAUSED:
        raise InvalidRequest(f"no document of job [{name}] has failed: there is nothing to retry")

    def again(record: Job) -> Job:
        changes = {"status": JobState.RUNNING, "reason": "", "ended": None, "final": None, "retried": now()}
        return record.model_copy(update=changes)

    return await _status_of(store, await _documents(engine, job), await store.change(name, again))


async def dry_run(engine: Engine, settings: Settings, request: JobRequest, sample: int) -> DryRun:
    """Enrich a sample without writing it, and estimate the whole job.

    The model's answers are stored as a job's are, so neither the job nor the next dry run pays for them again.

    Raises:
        InvalidRequest: As for :func:`submit`.
    """
    target, plan = await _checked(engine, settings, request)
    relevance = await relevance_of(plan, target, settings)
    store = JobStore(engine, settings.jobs_index)
    await store.prepare()
    job = _job("dry-run", target, plan, request)
    documents = Documents(engine, target)
    pending = await documents.pending(job)
    keys = []
    async for key in documents.keys(job, None):
        keys.append(key)
        if len(keys) == max(sample, _SAMPLED_FROM):
            break
    chosen = random.Random(0).sample(keys, min(sample, len(keys)))  # noqa: S311 - the same sample every time
    texts = [text for text in await documents.texts(chosen) if text.text] if chosen else []
    found: list[tuple[DocumentText, tuple[str, ...], Usage, str]] = []
    seconds, asked = 0.0, 0
    kept = await store.kept(plan.asked, [text.hash for text in texts])
    async with model_for_jobs(settings) as llm:
        for text, old in zip(texts, kept, strict=True):
            if old is not None:
                found.append((text, old.phrases, Usage(old.read, old.written), ""))
                continue
            asked += 1
            begun = time.monotonic()
            try:
                proposed = await propose(llm, plan, text.text)
            except NoReadableProposal as error:
                found.append((text, (), error.usage, str(error)))
            else:
                used = StoredProposal(
                    proposed.phrases,
                    proposed.usage.prompt_tokens,
                    proposed.usage.completion_tokens,
                    job.id,
                    text.key[0],
                )
                await store.keep(plan.asked, target.index, text.hash, used)
                found.append((text, proposed.phrases, proposed.usage, ""))
            seconds += time.monotonic() - begun
    left = await filtered(engine, target, plan, [(phrases, text.fields) for text, phrases, _, _ in found], relevance)
    sampled = [
        SampledDocument(text, phrases, kept, usage, problem)
        for (text, phrases, usage, problem), kept in zip(found, left, strict=True)
    ]
    share = pending / max(1, len(sampled))
    read = round(share * sum(each.usage.prompt_tokens for each in sampled))
    written = round(share * sum(each.usage.completion_tokens for each in sampled))
    whole = pending * seconds / max(1, asked)
    return DryRun(sampled, pending, read, written, request.price.of(read, written), whole)


async def submit_continuous(
    engine: Engine, settings: Settings, request: JobRequest, name: str, named: frozenset[str]
) -> JobStatus:
    """Make the one continuous job of a name; without a model it is paused, with the reason.

    A job of this name that has not ended stays as it is, but for the named options; one that waits for a model begins
    if there is one now.

    Raises:
        InvalidRequest: A value is invalid.
        MissingFeature: The index has no field for enrichment.
    """
    check_tau(request.tau)
    target = await enrichable(engine, request.index)
    prompt = prompt_of(request.prompt or DEFAULT_PROMPTS[settings.llm_api])
    chosen = {field: getattr(request, field) for field in Parameters.model_fields}
    plan = Plan(prompt=prompt.name, text=prompt.text, model="", api=settings.llm_api, **chosen)
    reason = ""
    try:
        plan = await _with_model(settings, plan)
    except (ConfigurationError, LlmError) as error:
        reason = f"{error}; then `es-ttc jobs resume {name}`"
    store = JobStore(engine, settings.jobs_index)
    await store.prepare()
    status = JobState.PAUSED if reason else JobState.RUNNING
    job = _job(name, target, plan, request).model_copy(update={"status": status, "reason": reason})
    documents = Documents(engine, target)
    job = job.model_copy(update={"total": await documents.pending(job)})
    try:
        await store.create(job)
    except VersionConflict:

        def again(present: Job) -> Job:
            if present.status.over:
                return job
            if not present.plan.model:
                return job
            changes = {option: getattr(request, option) for option in named - {"prompt"}}
            if "prompt" in named and not reason:
                changes["plan"] = plan
            return present.model_copy(update=changes)

        job = await store.change(name, again)
    return await _status_of(store, documents, job)


async def _with_model(settings: Settings, plan: Plan) -> Plan:
    """Return a plan with the model that is configured now; a default prompt becomes that of its API."""
    async with model_for_jobs(settings) as llm:
        model, api = await llm.model(seconds=_MODEL_SECONDS), llm.api
    prompt = prompt_of(DEFAULT_PROMPTS[api]) if plan.prompt in DEFAULT_PROMPTS.values() else None
    text = {"prompt": prompt.name, "text": prompt.text} if prompt else {}
    return Plan.model_validate({**plan.model_dump(), **text, "model": model, "api": api})


async def _set_plan(engine: Engine, settings: Settings, name: str, plan: Plan) -> None:
    store = JobStore(engine, settings.jobs_index)
    await store.change(name, lambda job: job.model_copy(update={"plan": plan}))


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


def _job(name: str, target: EnrichmentTarget, plan: Plan, request: JobRequest) -> Job:
    ordered = {field: getattr(request, field) for field in JobSpec.model_fields}
    return Job(**{**ordered, "index": target.index}, id=name, plan=plan)


async def _change(
    engine: Engine,
    settings: Settings,
    name: str,
    status: JobState,
    allowed: Sequence[str],
    budget: Mapping[str, Any] | None = None,
) -> JobStatus:
    store = JobStore(engine, settings.jobs_index)

    def changed(job: Job) -> Job:
        if job.status not in allowed:
            raise InvalidRequest(
                f"job [{name}] is {job.status} and cannot become {status}: `es-ttc jobs retry {name}` takes up what "
                f"failed, `es-ttc jobs submit {job.index}` begins anew"
            )
        ended = now() if status.over and job.ended is None else job.ended
        spent = job.budget.model_copy(update=dict(budget or {}))
        return job.model_copy(update={"status": status, "reason": "", "ended": ended, "budget": spent})

    job = await store.change(name, changed)
    return await _status_of(store, await _documents(engine, job), job)


async def _documents(engine: Engine, job: Job) -> Documents:
    return Documents(engine, await enrichable(engine, job.index))


async def _status_of(store: JobStore, documents: Documents, job: Job) -> JobStatus:
    first = await store.turn_of(job) if job.status is JobState.RUNNING else None
    return JobStatus(job, await store.progress(job, documents.pending), first.id if first else None)

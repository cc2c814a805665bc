"""One worker's turn at one partition of a job.

The steps for a document are: look for a stored proposal for its text; otherwise call the model; store the proposal;
filter; write the document; store the outcome. A turn may be killed between any two steps: the finished steps stay, and
the next turn at the partition, after the lease has expired, continues from there.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from es_ttc.enrichment.jobs.documents import DocumentText, JobDocumentKey, JobDocuments, document_pages
from es_ttc.enrichment.jobs.leases import HeldLease
from es_ttc.enrichment.jobs.outcomes import DocumentResult
from es_ttc.enrichment.jobs.rate_limit import SharedRateLimit
from es_ttc.enrichment.jobs.record import DocumentOutcome, Job, JobState, now
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.stored_proposals import StoredProposal
from es_ttc.enrichment.jobs.turn import JobStopped, TurnEnd, hold_turn, stop_job
from es_ttc.enrichment.proposals.filtering import filtered
from es_ttc.enrichment.proposals.proposing import NoReadableProposal
from es_ttc.enrichment.proposals.relevance import phrase_relevance
from es_ttc.errors import ConfigurationError, EngineError, LlmError, LlmFailure
from es_ttc.index.ingest.failures import cause_of
from es_ttc.llm import Usage, model_for_jobs
from es_ttc.settings import Settings

_MIN_CHUNK = 4
_MAX_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 10.0  # time before a failed document is retried; each further wait is three times as long
_OUTAGE_WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
_MODEL_SECONDS = 10.0
_TEMPORARY = frozenset(LlmFailure) - {LlmFailure.REFUSED}


@dataclass(slots=True)
class _Proposed:
    """A document with a proposal."""

    text: DocumentText
    kept: StoredProposal
    reused: bool


@dataclass(slots=True)
class _NoProposal:
    """A document without a proposal."""

    text: DocumentText
    kind: str
    reason: str
    usage: Usage = field(default_factory=Usage)
    temporary: bool = False
    final: bool = False


async def take_turn(store: JobStore, settings: Settings, redis: Any, job_id: str, partition: int) -> TurnEnd:
    """Work on one partition of a job for a while."""
    job = await store.enrichment.find(job_id)
    if job is None or job.status is not JobState.RUNNING or partition >= job.lanes or await store.turn_of(job):
        return TurnEnd.NOT_DUE

    async def work(lease: HeldLease) -> TurnEnd:
        try:
            return await _PartitionRun(store, settings, redis, job, partition, lease).run()
        finally:
            with suppress(EngineError):
                await store.engine.refresh(job.index)  # make this turn's results visible for counts

    return await hold_turn(store, job.id, partition, settings.jobs_turn_seconds, work, lambda _: True)


@dataclass
class _PartitionRun:
    store: JobStore
    settings: Settings
    redis: Any
    job: Job
    partition: int
    lease: HeldLease
    trouble: str = ""
    stopped: bool = False

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.settings.jobs_turn_seconds

    async def run(self) -> TurnEnd:
        self.documents = await JobDocuments.of(self.store.engine, self.job.index)
        await self.documents.refresh()
        self.relevance = await phrase_relevance(self.job.plan, self.documents.target, self.settings)
        if self.job.started is None:
            self.job = await self.store.enrichment.change(
                self.job.id, lambda job: job if job.started else job.model_copy(update={"started": now()})
            )
        try:
            client = model_for_jobs(self.settings)
        except ConfigurationError as error:
            await self._store_trouble(str(error))
            return TurnEnd.OUTAGE
        async with client as llm:
            self.llm = llm
            per_minute = self.settings.llm_requests_per_minute if self.settings.llm_offline is None else 0
            self.limit = SharedRateLimit(self.redis, llm.url, per_minute)
            if not await self._model_is_there():
                return TurnEnd.OUTAGE
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    await self._spend()
                    if not await self._through(chunk):
                        return TurnEnd.OUTAGE
                    if time.monotonic() > self.deadline:
                        return TurnEnd.TIME
        return TurnEnd.NOTHING_LEFT

    async def _model_is_there(self) -> bool:
        """Return whether the endpoint answers and serves the job's model; otherwise store why the job waits."""
        try:
            served = await self.llm.model(seconds=_MODEL_SECONDS)
        except (LlmError, ConfigurationError) as error:
            await self._store_trouble(str(error))
            return False
        plan = self.job.plan
        if (served, self.llm.api) != (plan.model, plan.api):
            await self._store_trouble(
                f"the job asks [{plan.model}] by [{plan.api}], and this worker is set to [{served}] by [{self.llm.api}]"
                ": set ES_TTC_LLM_MODEL and ES_TTC_LLM_API for the worker"
            )
            return False
        return True

    async def _chunks(self) -> AsyncGenerator[list[JobDocumentKey]]:
        """Yield the due documents of this partition, a few at a time."""
        keys = self.documents.keys(self.job, self.partition)
        async with aclosing(document_pages(keys, max(_MIN_CHUNK, 2 * self.job.parallel))) as found:
            async for page in found:
                if due := await self._due(page):
                    yield due

    async def _due(self, keys: Sequence[JobDocumentKey]) -> list[JobDocumentKey]:
        """Leave out documents that are finished or deferred."""
        self.earlier_outcomes = dict(zip(keys, await self.store.outcomes.get(self.job.id, keys), strict=True))
        return [key for key in keys if _is_due(self.earlier_outcomes[key])]

    async def _through(self, keys: list[JobDocumentKey]) -> bool:
        """Process a few documents through all steps; return False if the endpoint answered for none of them."""
        texts = await self.documents.texts(keys)
        results = [_skipped(text) for text in texts if not text.text]
        texts = [text for text in texts if text.text]
        kept = await self.store.proposals.get(self.job.plan.asked, [text.hash for text in texts])
        answered = [_Proposed(text, old, True) for text, old in zip(texts, kept, strict=True) if old is not None]
        new, failed = await self._propose([text for text, old in zip(texts, kept, strict=True) if old is None])
        answered += new
        results += await self._write(answered)
        outage = bool(failed) and not new and all(each.temporary for each in failed)
        if not outage:
            results += [self._failure(each) for each in failed]
        await self.store.outcomes.put(self.job.id, results)
        await self._watch(results)
        if outage:
            await self._wait_out(failed[0])
            return False
        if self.trouble and new:
            await self._store_trouble("")
        return True

    async def _propose(self, texts: Sequence[DocumentText]) -> tuple[list[_Proposed], list[_NoProposal]]:
        """Call the model for documents, some at a time; if the job is stopped, no further calls begin."""
        gate = asyncio.Semaphore(self.job.parallel)
        stopped = False
        answered: list[_Proposed] = []
        failed: list[_NoProposal] = []

        async def one(text: DocumentText) -> None:
            nonlocal stopped
            async with gate:
                if stopped or time.monotonic() > self.deadline:
                    return
                if not await self._may_go_on():
                    stopped = True
                    return
                await self.limit.wait()
                outcome = await self._propose_for(text)
            (answered if isinstance(outcome, _Proposed) else failed).append(outcome)  # type: ignore[arg-type]

        try:
            async with asyncio.TaskGroup() as group:
                for text in texts:
                    group.create_task(one(text))
        except BaseExceptionGroup as errors:
            raise cause_of(errors) from None
        self.stopped = stopped
        return answered, failed

    async def _propose_for(self, text: DocumentText) -> _Proposed | _NoProposal:
        try:
            kept = await self.store.proposals.propose(self.llm, self.job, text)
        except NoReadableProposal as error:
            return _NoProposal(text, "unreadable", str(error), error.usage)
        except LlmError as error:
            temporary = error.failure in _TEMPORARY
            return _NoProposal(text, error.failure, str(error), temporary=temporary, final=not temporary)
        return _Proposed(text, kept, False)

    async def _write(self, answered: Sequence[_Proposed]) -> list[DocumentResult]:
        if not answered:
            return []
        found = await filtered(
            self.store.engine,
            self.documents.target,
            self.job.plan,
            [(each.kept.phrases, each.text.fields) for each in answered],
            self.relevance,
        )
        phrases = [(each.text, left.kept) for each, left in zip(answered, found, strict=True)]
        done, refused = await self.documents.write(self.job, phrases)
        results = []
        for each, left in zip(answered, found, strict=True):
            key = each.text.key
            if key not in done and key not in refused:
                continue  # it was changed or deleted meanwhile: a changed document is found again
            read, written = self._tokens(each)
            results.append(
                DocumentResult(
                    *key,
                    DocumentOutcome.DONE if key in done else DocumentOutcome.FAILED,
                    kind="" if key in done else "write",
                    reason=refused.get(key, ""),
                    read=read,
                    written=written,
                    reused=not each.kept.was_paid_by(self.job.id, key[0]),
                    phrases=len(left.kept) if key in done else 0,
                    dropped=len(left.dropped),
                )
            )
        return results

    def _tokens(self, each: _Proposed) -> tuple[int, int]:
        """Return the tokens that the job has spent on a document, including failed attempts and earlier texts."""
        before = self.earlier_outcomes.get(each.text.key) or {}
        read, written = before.get("read", 0), before.get("written", 0)
        counted = each.reused and before.get("outcome") == DocumentOutcome.DONE
        if counted or not each.kept.was_paid_by(self.job.id, each.text.key[0]):
            return read, written
        return read + each.kept.read, written + each.kept.written

    def _failure(self, failed: _NoProposal) -> DocumentResult:
        """Return the outcome of a failure: final after some attempts, else deferred."""
        key = failed.text.key
        before = self.earlier_outcomes.get(key) or {}
        attempts = before.get("attempts", 0) + 1
        final = failed.final or attempts >= _MAX_ATTEMPTS
        wait = timedelta(seconds=_FIRST_WAIT_SECONDS * 3.0 ** (attempts - 1))
        return DocumentResult(
            *key,
            DocumentOutcome.FAILED if final else DocumentOutcome.DEFERRED,
            kind=failed.kind,
            reason=failed.reason,
            read=before.get("read", 0) + failed.usage.prompt_tokens,
            written=before.get("written", 0) + failed.usage.completion_tokens,
            attempts=attempts,
            due=None if final else now() + wait,
        )

    async def _watch(self, results: Sequence[DocumentResult]) -> None:
        """End the turn if the job was stopped; pause the job if document after document fails."""
        if any(result.outcome in (DocumentOutcome.FAILED, DocumentOutcome.DEFERRED) for result in results):
            last = await self.store.outcomes.failing(self.job)
            if last is not None:
                await stop_job(
                    self.store,
                    self.job.id,
                    f"{self.job.most_failures} documents in a row failed, the last one as [{last['kind']}]: "
                    f"{last['reason']}; see to it, then `es-ttc jobs retry {self.job.id}`",
                )
                raise JobStopped
        if self.stopped:
            raise JobStopped

    async def _spend(self) -> None:
        """Pause the job when its budget is spent; running calls of other workers still add to it."""
        budget = self.job.budget
        if budget.tokens is None and budget.cost is None:
            return
        tokens, cost = await self.store.outcomes.spent(self.job)
        over = (budget.tokens is not None and tokens >= budget.tokens, budget.cost is not None and cost >= budget.cost)
        if any(over):
            spent = f"{tokens:,} of {budget.tokens:,} tokens" if over[0] else f"{cost:.2f} of {budget.cost:.2f}"
            await stop_job(
                self.store,
                self.job.id,
                f"the budget is spent ({spent}): `es-ttc jobs resume {self.job.id}` with a larger --budget-tokens or "
                "--budget-cost goes on",
            )
            raise JobStopped

    async def _may_go_on(self) -> bool:
        return (await self.store.enrichment.get(self.job.id)).status is JobState.RUNNING

    async def _wait_out(self, failed: _NoProposal) -> None:
        """Wait, longer each time, until the endpoint answers or the turn's time is up."""
        await self._store_trouble(failed.reason)
        for seconds in _OUTAGE_WAITS:
            if time.monotonic() + seconds > self.deadline:
                return
            await asyncio.sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311 - workers apart from each other
            if not await self._may_go_on():
                raise JobStopped
            try:
                await self.llm.models(seconds=_MODEL_SECONDS)
            except LlmError:
                continue
            return

    async def _store_trouble(self, trouble: str) -> None:
        """Store the reason why this partition waits, for `es-ttc jobs show`."""
        self.trouble = trouble
        await self.lease.note(trouble)


def _is_due(note: dict[str, Any] | None) -> bool:
    """Return whether a document without enrichment is to be processed now."""
    if note is None or note["outcome"] == DocumentOutcome.DONE:
        return True  # it was enriched and has changed since
    if note["outcome"] != DocumentOutcome.DEFERRED:
        return False
    return note["due"] is None or datetime.fromisoformat(note["due"]) <= now()


def _skipped(text: DocumentText) -> DocumentResult:
    return DocumentResult(
        *text.key, DocumentOutcome.SKIPPED, kind="no text", reason="it has no text in the index's text fields"
    )

"""The records of jobs, their progress and their status.

There are two kinds: an :class:`EncodingJob` encodes what is written to one index, and has no end. A :class:`Job`
enriches the documents of one index with a language model.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, computed_field

from es_ttc.enrichment.proposals.plan import Plan
from es_ttc.errors import InvalidRequest

_ENCODING = "encode-"


def now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(UTC)


def encoding_job_id(index: str) -> str:
    """Return the id of the job that encodes what is written to an index."""
    return f"{_ENCODING}{index}"


def enrichment_job_id(index: str) -> str:
    """Return the id of the job that enriches what is written to an index."""
    return f"enrich-{index}"


def is_encoding(job: str) -> bool:
    """Return whether a job of this id encodes."""
    return job.startswith(_ENCODING)


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.COMPLETED, JobState.CANCELLED)


class DocumentOutcome(StrEnum):
    """The outcome of a document in a job."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"  # it failed, and will be retried


class Budget(BaseModel):
    """Limits of a job's cost; the job pauses when one is reached."""

    model_config = ConfigDict(extra="forbid")

    tokens: int | None = Field(
        None, ge=1, description="Budget in tokens, read and written; the job pauses when it is spent."
    )
    cost: float | None = Field(
        None, gt=0, description="Budget in money, in the currency of the prices; the job pauses when it is spent."
    )


class Price(BaseModel):
    """Price of a million tokens, in any currency."""

    model_config = ConfigDict(extra="forbid")

    read: float = Field(0.0, ge=0, description="Price of a million tokens of requests.")
    written: float = Field(0.0, ge=0, description="Price of a million tokens of answers.")

    def of(self, read: int, written: int) -> float:
        """Return the cost of a number of tokens."""
        return (read * self.read + written * self.written) / 1e6


class JobSpec(BaseModel):
    """The documents of a job, and how they are processed."""

    model_config = ConfigDict(extra="forbid")

    index: str = Field(min_length=1, description="The index.")
    query: dict[str, Any] | None = Field(None, description="Query of the engine that selects documents. Default: all.")
    redo: bool = Field(False, description="Also process documents enriched with another prompt, model or parameters.")
    continuous: bool = Field(False, description="Keep running and process later documents, until cancelled.")
    lanes: int = Field(8, ge=1, le=64, description="Number of partitions, which workers process in parallel.")
    parallel: int = Field(1, ge=1, le=256, description="Maximum number of requests in flight per partition.")
    priority: int = Field(5, ge=0, le=9, description="Priority; jobs with a greater one run first.")
    budget: Budget = Field(default_factory=lambda: Budget(tokens=None, cost=None), description="Limits of its cost.")
    price: Price = Field(
        default_factory=lambda: Price(read=0.0, written=0.0), description="Price, for the estimate of costs."
    )
    most_failures: int = Field(
        200,
        ge=1,
        le=10_000,
        description="Number of failures in a row after which the job pauses.",
    )
    refresh: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Growth of a continuous job's index, as a share of its documents, after which the stored proposals "
        "of all documents are filtered again, because shares of documents have changed; null for never.",
    )


class JobRecord(BaseModel, ABC):
    """The part of a record that both kinds of jobs have."""

    id: str
    index: str
    status: JobState = JobState.RUNNING
    reason: str = ""
    created: datetime = Field(default_factory=now)
    ended: datetime | None = None

    @property
    @abstractmethod
    def endless(self) -> bool:
        """Whether the job continues with documents that arrive later."""

    @property
    @abstractmethod
    def anew(self) -> str:
        """How the work of a job that has ended is begun again."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that commands print."""

    def changed_to(self, status: JobState) -> Self:
        """Return the record after a command."""
        if self.status.over and self.status is not status:
            raise InvalidRequest(f"job [{self.id}] is {self.status} and cannot become {status}: {self.anew}")
        ended = (self.ended or now()) if status.over else None
        return self.model_copy(update={"status": status, "reason": "", "ended": ended})

    def stopped(self, reason: str, *, gone: bool) -> Self | None:
        """Return the record of a running job that is paused, or ended if its index is gone; None for another one."""
        if self.status is not JobState.RUNNING:
            return None
        if gone:
            return self.changed_to(JobState.CANCELLED).model_copy(update={"reason": "its index was deleted"})
        return self.model_copy(update={"status": JobState.PAUSED, "reason": reason})


class EncodingJob(JobRecord):
    """A continuous job that encodes what any client writes to one concrete index, maybe one behind the alias `name`."""

    model_config = ConfigDict(frozen=True)

    name: str = ""

    @property
    def endless(self) -> bool:
        """Whether the job continues with documents that arrive later."""
        return True

    @property
    def anew(self) -> str:
        """How the work of a job that has ended is begun again."""
        return f"`es-ttc index pipeline {self.index} --encode later` makes it again"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that commands print."""
        return {"kind": "encoding", **self.model_dump(mode="json", exclude={"status"})}


class EncodingCheckpoint(BaseModel):
    """How far a job that encodes has come, as its worker stores it every few seconds."""

    source: str = ""
    holder: str = ""
    shards: dict[int, int] = Field(default_factory=dict)
    written: int = 0
    failed: int = 0
    removed: int = 0
    encoder_seconds: float = 0.0

    def is_of(self, source: str, holder: str) -> bool:
        """Return whether the checkpoint is one of an index of this UUID whose features are in this index."""
        return (self.source, self.holder) == (source, holder)


class Job(JobSpec, JobRecord):
    """An enrichment of the documents of one concrete index."""

    plan: Plan
    started: datetime | None = None
    retried: datetime | None = None
    total: int = 0
    filtered: int = 0
    final: dict[str, Any] | None = None

    @property
    def endless(self) -> bool:
        """Whether the job continues with documents that arrive later."""
        return self.continuous

    @property
    def anew(self) -> str:
        """How the work of a job that has ended is begun again."""
        failed = "" if self.status is JobState.CANCELLED else f"`es-ttc jobs retry {self.id}` takes up what failed, "
        return f"{failed}`es-ttc jobs submit {self.index}` begins anew"

    def refresh_due(self, documents: int) -> bool:
        """Return whether the index has grown so much that proposals are to be filtered again."""
        return self.refresh is not None and self.filtered > 0 and documents >= self.filtered * (1 + self.refresh)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that commands print, with name and version of the prompt in place of its text."""
        plan = self.plan.model_dump(mode="json", exclude={"text"})
        prompt = {"prompt_version": self.plan.template.version, "key": self.plan.key}
        record = self.model_dump(mode="json", exclude={"plan", "status", "final"})
        return {**record, "plan": {**plan, **prompt}}


class Progress(BaseModel):
    """Progress of a job, counted in the engine on request; each kind has some of the counts."""

    total: int
    done: int
    failed: int
    skipped: int = 0
    deferred: int = 0  # documents that failed and will be retried
    pending: int
    removed: int = 0  # deleted documents whose features were removed from a side index
    reused: int = 0  # documents for whose text a proposal was stored
    read: int = 0
    written: int = 0
    cost: float = 0.0
    rate: float  # documents per second: of the encoder's time, or in the last minute
    remaining: float | None  # estimated seconds until nothing is pending; None if there is no rate
    phrases: int = 0
    # Kinds of failures, each with its number of documents and some of them
    errors: list[dict[str, Any]] = Field(default_factory=list)
    trouble: str  # why a worker waits; empty if none does

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens(self) -> int:
        """The number of all tokens."""
        return self.read + self.written

    def final(self) -> dict[str, Any]:
        """Return the counts to keep with a job that has ended."""
        return self.model_dump(mode="json", exclude={"trouble", "remaining"})


AnyJob = TypeVar("AnyJob", bound=JobRecord)
J_co = TypeVar("J_co", bound=JobRecord, covariant=True)


@dataclass(frozen=True, slots=True)
class JobStatus(Generic[J_co]):
    """A job with its progress, and the job on the same index that is processed first, if any."""

    job: J_co
    progress: Progress
    waits_for: str | None = None

    @property
    def state(self) -> str:
        """Its state, in one word."""
        if self.job.status is not JobState.RUNNING:
            return self.job.status
        if self.waits_for:
            return "waiting"
        return "idle" if self.job.endless and not self.progress.pending else "running"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        progress = self.progress.model_dump(mode="json")
        return {**self.job.as_dict(), "state": self.state, "waits_for": self.waits_for, "progress": progress}

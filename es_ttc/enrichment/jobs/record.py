"""A job's record, and what is known about how it goes."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.enrichment.proposals.plan import Plan


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more will be done."""
        return self in (JobState.COMPLETED, JobState.CANCELLED)


class DocumentOutcome(StrEnum):
    """What became of a document in a job."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    DEFERRED = "deferred"
    """It failed, and is tried again later."""

    @property
    def final(self) -> bool:
        """Whether the job does not come back to it."""
        return self is not DocumentOutcome.DEFERRED


class Budget(BaseModel):
    """What a job may spend; it pauses by itself where that is spent.

    Attributes:
        tokens: Tokens, read and written.
        cost: Money, in the currency of the prices.
    """

    model_config = ConfigDict(extra="forbid")

    tokens: int | None = Field(None, ge=1)
    cost: float | None = Field(None, gt=0)


class Price(BaseModel):
    """What a million tokens cost, in any currency.

    Attributes:
        read: Tokens of questions.
        written: Tokens of answers.
    """

    model_config = ConfigDict(extra="forbid")

    read: float = Field(0.0, ge=0)
    written: float = Field(0.0, ge=0)

    def of(self, read: int, written: int) -> float:
        """Return the cost of some tokens."""
        return (read * self.read + written * self.written) / 1e6


class JobSpec(BaseModel):
    """Which documents a job is about, and how it is to be done.

    Attributes:
        index: The index.
        query: The documents, as a query of the engine; None for all of them.
        redo: Whether documents are enriched anew that another plan has enriched.
        continuous: Whether it goes on with documents that arrive later.
        lanes: Parts that workers can take on at the same time.
        parallel: Questions in flight at once for one part.
        priority: 0 to 9, greater ones first.
        budget: What it may spend.
        price: For the estimate of costs.
        most_failures: Documents that fail without one success between them before it pauses by itself.
    """

    model_config = ConfigDict(extra="forbid")

    index: str
    query: dict[str, Any] | None = None
    redo: bool = False
    continuous: bool = False
    lanes: int = Field(8, ge=1, le=64)
    parallel: int = Field(1, ge=1, le=256)
    priority: int = Field(5, ge=0, le=9)
    budget: Budget = Field(default_factory=lambda: Budget(tokens=None, cost=None))
    price: Price = Field(default_factory=lambda: Price(read=0.0, written=0.0))
    most_failures: int = Field(200, ge=1, le=10_000)


class Job(JobSpec):
    """An enrichment of the documents of one concrete index.

    Attributes:
        id: Its name.
        plan: How documents are enriched.
        status: Where it stands.
        reason: Why it paused by itself; empty otherwise.
        created: When it was submitted.
        started: When a worker first came to it.
        ended: When it was over.
        retried: When failed documents were last taken up again.
        total: Documents to enrich when it was submitted.
        final: Its counts when it was over.
    """

    id: str
    plan: Plan
    status: JobState = JobState.RUNNING
    reason: str = ""
    created: datetime = Field(default_factory=lambda: now())
    started: datetime | None = None
    ended: datetime | None = None
    retried: datetime | None = None
    total: int = 0
    final: dict[str, Any] | None = None


class JobProgress(BaseModel):
    """How a job goes: counted in the engine whenever it is asked for.

    Attributes:
        total: Documents that the job is about.
        done: Enriched by it.
        failed: Given up.
        skipped: Without text.
        deferred: Failed, and to be tried again.
        pending: Still to be enriched.
        reused: Documents among those done for which nothing was paid.
        read: Tokens of questions.
        written: Tokens of answers.
        cost: What they cost.
        rate: Documents a second, over the last minute.
        remaining: Seconds until the end at this rate; None where there is no rate.
        phrases: Phrases written.
        errors: Documents by kind of failure, with samples of reasons.
        trouble: What keeps a worker waiting; empty where nothing does.
    """

    total: int
    done: int
    failed: int
    skipped: int
    deferred: int
    pending: int
    reused: int
    read: int
    written: int
    cost: float
    rate: float
    remaining: float | None
    phrases: int
    errors: list[dict[str, Any]]
    trouble: str

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.read + self.written


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)

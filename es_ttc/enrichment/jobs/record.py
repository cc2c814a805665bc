"""A job's record, and its progress."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.enrichment.proposals.plan import Plan


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
    DEFERRED = "deferred"
    """It failed, and will be retried."""

    @property
    def final(self) -> bool:
        """Whether the job does not process it again."""
        return self is not DocumentOutcome.DEFERRED


class Budget(BaseModel):
    """Limits of a job's cost; the job pauses when one is reached."""

    model_config = ConfigDict(extra="forbid")

    tokens: int | None = Field(None, ge=1, description="Tokens, read and written.")
    cost: float | None = Field(None, gt=0, description="Money, in the currency of the prices.")


class Price(BaseModel):
    """Price of a million tokens, in any currency."""

    model_config = ConfigDict(extra="forbid")

    read: float = Field(0.0, ge=0, description="Tokens of requests.")
    written: float = Field(0.0, ge=0, description="Tokens of answers.")

    def of(self, read: int, written: int) -> float:
        """Return the cost of a number of tokens."""
        return (read * self.read + written * self.written) / 1e6


class JobSpec(BaseModel):
    """The documents of a job, and how they are processed."""

    model_config = ConfigDict(extra="forbid")

    index: str = Field(min_length=1, description="The index.")
    query: dict[str, Any] | None = Field(None, description="The documents, as an engine's query; null for all of them.")
    redo: bool = Field(False, description="Whether documents that another plan has enriched are enriched again.")
    continuous: bool = Field(False, description="Whether the job continues with documents that arrive later.")
    lanes: int = Field(8, ge=1, le=64, description="Number of partitions, which workers process in parallel.")
    parallel: int = Field(1, ge=1, le=256, description="Maximum number of requests in flight per partition.")
    priority: int = Field(5, ge=0, le=9, description="0 to 9, greater ones first.")
    budget: Budget = Field(default_factory=lambda: Budget(tokens=None, cost=None), description="Limits of its cost.")
    price: Price = Field(
        default_factory=lambda: Price(read=0.0, written=0.0), description="Price, for the estimate of costs."
    )
    most_failures: int = Field(
        200,
        ge=1,
        le=10_000,
        description="Number of failed documents without a success in between after which the job pauses.",
    )
    refresh: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Growth of a continuous job's index, as a share of its documents, after which the stored proposals "
        "of all documents are filtered again, because shares of documents have changed; null for never.",
    )


class Job(JobSpec):
    """An enrichment of the documents of one concrete index."""

    id: str
    plan: Plan
    status: JobState = JobState.RUNNING
    reason: str = ""
    created: datetime = Field(default_factory=lambda: now())
    started: datetime | None = None
    ended: datetime | None = None
    retried: datetime | None = None
    total: int = 0
    filtered: int = 0
    final: dict[str, Any] | None = None

    def refresh_due(self, documents: int) -> bool:
        """Return whether the index has grown so much that proposals are to be filtered again."""
        return self.refresh is not None and self.filtered > 0 and documents >= self.filtered * (1 + self.refresh)


class JobProgress(BaseModel):
    """Progress of a job, counted in the engine on request."""

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
        """The number of all tokens."""
        return self.read + self.written


def now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(UTC)

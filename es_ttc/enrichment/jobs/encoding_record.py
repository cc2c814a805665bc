"""The record of a job that encodes: it follows the writes to one index, and has no end."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.enrichment.jobs.record import JobState, now

_PREFIX = "encode-"


class EncodingJob(BaseModel):
    """A continuous job that encodes the documents that any client writes to one concrete index."""

    model_config = ConfigDict(frozen=True)

    id: str
    index: str
    name: str = ""
    status: JobState = JobState.RUNNING
    reason: str = ""
    created: datetime = Field(default_factory=lambda: now())
    ended: datetime | None = None


class EncodingRecord(BaseModel):
    """How far a job that encodes has come, as its worker stores it every few seconds."""

    source: str = ""
    holder: str = ""
    shards: dict[int, int] = Field(default_factory=dict)
    written: int = 0
    failed: int = 0
    removed: int = 0
    encoder_seconds: float = 0.0


class EncodingProgress(BaseModel):
    """Progress of a job that encodes, counted in the engine on request.

    Attributes:
        total: Documents of the index.
        done: Documents encoded by the job; a document that was written twice counts twice.
        failed: Documents that cannot be encoded.
        pending: Documents that wait for their features, as of the last refresh.
        removed: Deleted documents whose features were removed from a side index.
        rate: Documents per second that the encoder manages, measured over the job's life.
        remaining: Estimated seconds until nothing is pending; None if there is no rate.
        trouble: Why a worker waits; empty if none does.
    """

    total: int
    done: int
    failed: int
    pending: int
    removed: int
    rate: float
    remaining: float | None
    trouble: str

    @property
    def tokens(self) -> int:
        """Tokens of a language model: none."""
        return 0


def encoding_job_id(index: str) -> str:
    """Return the id of the job that encodes an index."""
    return f"{_PREFIX}{index}"


def is_encoding(job: str) -> bool:
    """Return whether a job of this id encodes."""
    return job.startswith(_PREFIX)

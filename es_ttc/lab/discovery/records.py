"""The records of a search: a proposal, and the result of a generation."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from es_ttc.rescorers.programs.source import Reason


def _written(text: str) -> str:
    """Return a text without lone surrogates, which files cannot contain."""
    return text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_written)]
"""Untrusted text from a program or a proposer."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LlmUsage(_Model):
    """Cost of a proposal at the endpoint of a language model."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Proposal(_Model):
    """A proposed program."""

    source: Text
    origin: str
    title: Text = ""
    parents: tuple[str, ...] = ()
    novelty: Text = ""
    hypothesis: Text = ""
    genome: Any = None
    llm: LlmUsage | None = None


class TaskResult(_Model):
    """The result of a program on one task."""

    value: float
    delta: float
    queries: int
    documents: int
    index_texts: int
    query_texts: int
    readings: tuple[str, ...]
    seconds: float


class Figures(_Model):
    """What a measured program comes to; without values if it was rejected."""

    tasks: Mapping[str, TaskResult] = Field(default_factory=dict)
    mean: float | None = None
    wins: int = 0
    ties: int = 0
    losses: int = 0
    cost: float | None = None
    fingerprint: str = ""


class Record(Figures):
    """One line of the memory: the result of one generation."""

    kind: Literal["program"] = "program"
    generation: int
    name: str
    proposal: Proposal
    verdict: Literal["measured", "rejected"]
    reason: Reason | None = None
    detail: Text = ""
    admitted: bool = False
    seconds: float = 0.0


class TaskPlan(_Model):
    """The source of a task: a BEIR folder or, without one, a generated collection; ids of its queries and documents."""

    name: str
    folder: str | None
    split: str
    held_out: str
    queries: tuple[str, ...]
    held_queries: tuple[str, ...]
    documents: tuple[str, ...]
    held_documents: tuple[str, ...]


class Plan(_Model):
    """The first line of a memory: everything that is needed to resume the search."""

    kind: Literal["plan"] = "plan"
    version: int = 1
    encoder: str
    identity: str
    seed: int
    proposer: str
    seeds: Literal["all", "cheap", "none"] = Field(
        "all", description="Initial programs, from the paper; cheap: those that encode nothing for a query."
    )
    tasks: tuple[TaskPlan, ...]
    seconds: float = Field(20.0, ge=0.1, description="Time limit per task, in seconds.")
    memory_mb: int = Field(1024, ge=64, description="Memory limit, in MiB.")
    most_cost: float = Field(50.0, ge=1, description="Maximum cost ratio c.")
    distance: float = 0.02

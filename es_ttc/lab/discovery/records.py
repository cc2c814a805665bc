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
    """A proposed program.

    Attributes:
        source: Its text.
        origin: Name of the proposer; `seed` for initial programs.
        title: A descriptive name, if there is one.
        parents: Names of the programs from which it was derived.
        novelty: One sentence about its novelty (section 3.2).
        hypothesis: One sentence: why it should help.
        genome: Its tree in the grammar, if it has one.
        llm: Its cost at an endpoint.
    """

    source: Text
    origin: str
    title: Text = ""
    parents: tuple[str, ...] = ()
    novelty: Text = ""
    hypothesis: Text = ""
    genome: Any = None
    llm: LlmUsage | None = None


class TaskResult(_Model):
    """The result of a program on one task.

    Attributes:
        value: Mean nDCG@10.
        delta: Difference from P0, the plain cosine.
        queries: Queries of the task.
        documents: Documents of the task.
        index_texts: Number of encoded texts that depend on documents only.
        query_texts: Number of encoded texts that depend on queries.
        readings: The features that it reads, in addition to whole documents.
        seconds: Its own time, without the encoder's.
    """

    value: float
    delta: float
    queries: int
    documents: int
    index_texts: int
    query_texts: int
    readings: tuple[str, ...]
    seconds: float


class Record(_Model):
    """One line of the memory: the result of one generation.

    Attributes:
        generation: Its number, from 1; initial programs have 0 or less.
        name: `g017`, or the name of a seed.
        proposal: The proposal.
        verdict: Whether it was measured.
        reason: Why it was not measured.
        detail: One sentence about it.
        tasks: Results by task.
        mean: Mean of the tasks' differences from P0.
        wins: Number of tasks above +.001.
        ties: Number of tasks in between.
        losses: Number of tasks below -.001.
        cost: The paper's cost ratio c over all tasks.
        admitted: Whether it entered the paper's frontier: a positive mean, above every one admitted before.
        fingerprint: Fingerprint of the scores, which identifies programs with equal rankings.
        seconds: Time of the generation.
    """

    kind: Literal["program"] = "program"
    generation: int
    name: str
    proposal: Proposal
    verdict: Literal["measured", "rejected"]
    reason: Reason | None = None
    detail: Text = ""
    tasks: Mapping[str, TaskResult] = Field(default_factory=dict)
    mean: float | None = None
    wins: int = 0
    ties: int = 0
    losses: int = 0
    cost: float | None = None
    admitted: bool = False
    fingerprint: str = ""
    seconds: float = 0.0


class TaskPlan(_Model):
    """The source of a task.

    Attributes:
        name: Of the collection.
        folder: A BEIR folder; None for a generated task.
        split: Split of the search's queries.
        held_out: Split of the held-out queries, for the report of `promote`; None if there are none.
        queries: Ids of the search's queries.
        held_queries: Ids of the held-out queries.
        documents: Ids of the ranked documents, for the search and for the report.
    """

    name: str
    folder: str | None
    split: str
    held_out: str
    queries: tuple[str, ...]
    held_queries: tuple[str, ...]
    documents: tuple[str, ...]
    held_documents: tuple[str, ...]


class Plan(_Model):
    """The first line of a memory: everything that is needed to resume the search.

    Attributes:
        encoder: Name of the encoder, for the settings.
        identity: Its identity; vectors of another encoder would give other results.
        seed: Seed of all random choices.
        proposer: Name of the proposer.
        seeds: The initial programs.
        tasks: The tasks.
        seconds: Time limit of a program on a task.
        memory_mb: Memory limit of a program.
        most_cost: Maximum cost ratio of a program, over all tasks.
        distance: Minimum structural distance from every program of the registry.
    """

    kind: Literal["plan"] = "plan"
    version: int = 1
    encoder: str
    identity: str
    seed: int
    proposer: str
    seeds: Literal["all", "cheap", "none"] = "all"
    tasks: tuple[TaskPlan, ...]
    seconds: float = 20.0
    memory_mb: int = 1024
    most_cost: float = 50.0
    distance: float = 0.02

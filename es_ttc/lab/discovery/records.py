"""What the search says and remembers: a proposal, and a record of what became of it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from es_ttc.rescorers.programs.source import Reason


def _written(text: str) -> str:
    """Return a text that a file can hold: without lone surrogates."""
    return text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_written)]
"""What a program, or whoever proposes one, may have put anything into."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LlmUsage(_Model):
    """What a proposal cost at the endpoint of a language model."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Proposal(_Model):
    """A program as a proposer gives it.

    Attributes:
        source: Its text.
        origin: Which proposer wrote it; `seed` for those that a search begins with.
        title: A name that says what it is, where there is one.
        parents: Names of the programs that it was made from.
        novelty: One sentence: what is new in it (section 3.2).
        hypothesis: One sentence: why it should help.
        genome: The grammar's own form of it, if it has one.
        llm: What it cost at an endpoint.
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
    """A program on one task.

    Attributes:
        value: Mean nDCG@10.
        delta: Minus that of P0, the plain cosine.
        queries: Queries of the task.
        documents: Documents of the task.
        index_texts: Texts encoded that depend on documents alone.
        query_texts: Texts encoded that depend on queries.
        readings: What it reads of an index beside whole documents.
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
    """One line of the memory: one generation.

    Attributes:
        generation: Its number, from 1; programs that the search began with have 0 or less.
        name: `g017`, or the name of a seed.
        proposal: What was proposed.
        verdict: Whether it was measured.
        reason: Why not.
        detail: One sentence about it.
        tasks: What came of it, by task.
        mean: Mean of the tasks' differences from P0.
        wins: Tasks above +.001.
        ties: Tasks within.
        losses: Tasks below.
        cost: The paper's cost ratio c over all tasks.
        admitted: Whether it entered the paper's frontier: a positive mean, above every one admitted before.
        fingerprint: Of the scores, to tell programs that rank alike.
        seconds: How long the generation took.
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
    """Where a task comes from.

    Attributes:
        name: Of the collection.
        folder: A BEIR folder; None for a generated task.
        split: Queries that the search sees.
        held_out: Queries that it never sees, for the report of `promote`; None where there are no more.
        queries: Ids of the queries that it sees.
        held_queries: Ids of those that it never sees.
        documents: Ids of the documents that are ranked, in the search and in the report each.
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
    """The first line of a memory: what the search is, so that going on with it needs nothing else.

    Attributes:
        encoder: Its name, as settings take it.
        identity: Its identity; vectors of another would give other results.
        seed: Of everything that is drawn.
        proposer: Which one.
        seeds: Which of the paper's programs it begins with.
        tasks: The tasks.
        seconds: Limit of a program on a task.
        memory_mb: Limit of a program.
        most_cost: Greatest cost ratio of a program, on all tasks together.
        distance: Least structural distance from every program of the registry.
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

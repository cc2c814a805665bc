"""The records of a search, and its memory: an append-only file with one JSON record per line.

A record is on disk before the search continues. A process that is killed while it writes leaves an incomplete last
line: the next process that opens the file for writing removes it, and the generation is repeated. Written records never
change.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from es_ttc.errors import ConfigurationError
from es_ttc.rescorers.programs.source import RefusalReason


def _written(text: str) -> str:
    """Return a text without lone surrogates, which files cannot contain."""
    return text.encode(errors="replace").decode()


Text = Annotated[str, AfterValidator(_written)]  # untrusted text from a program or a proposer


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LlmUsage(_Model):
    """Cost of a proposal at the endpoint of a language model."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class ProposedProgram(_Model):
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


class ProgramRecord(Figures):
    """One line of the memory: the result of one generation."""

    kind: Literal["program"] = "program"
    generation: int
    name: str
    proposal: ProposedProgram
    verdict: Literal["measured", "rejected"]
    reason: RefusalReason | None = None
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


class DiscoveryPlan(_Model):
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


MEMORY_FILE = "memory.jsonl"


class SearchLog:
    """One search's memory, open for appending by this process only."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / MEMORY_FILE
        self._file = self.path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigurationError(f"another process runs the search in [{folder}]") from None
        try:
            whole = _cut(self._file.fileno())
            self.plan, self._records = _read(self.path, whole)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def records(self) -> Sequence[ProgramRecord]:
        """All generations, oldest first."""
        return self._records

    def begin(self, plan: DiscoveryPlan) -> None:
        """Write the first line."""
        self._write(plan.model_dump(mode="json"))
        self.plan = plan

    def append(self, record: ProgramRecord) -> None:
        """Write a generation; it is on disk when this returns."""
        self._write(record.model_dump(mode="json"))
        self._records.append(record)

    def _write(self, content: object) -> None:
        self._file.write(orjson.dumps(content) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_memory(folder: Path) -> tuple[DiscoveryPlan, list[ProgramRecord]]:
    """Return a memory, also of a running search; an incomplete last line is left out."""
    path = folder / MEMORY_FILE
    try:
        content = path.read_bytes()
    except OSError:
        raise ConfigurationError(f"[{folder}] holds no search: start one with `es-ttc discover run`") from None
    plan, records = _read(path, content[: content.rfind(b"\n") + 1])
    if plan is None:
        raise ConfigurationError(f"[{path}] is empty: the search has not begun")
    return plan, records


def _cut(descriptor: int) -> bytes:
    """Remove an incomplete last line, and return the rest."""
    size = os.fstat(descriptor).st_size
    content = os.pread(descriptor, size, 0)
    whole = content.rfind(b"\n") + 1
    if whole != size:
        os.ftruncate(descriptor, whole)
        os.fsync(descriptor)
    return content[:whole]


def _read(path: Path, content: bytes) -> tuple[DiscoveryPlan | None, list[ProgramRecord]]:
    plan: DiscoveryPlan | None = None
    records: list[ProgramRecord] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            if number == 1:
                plan = DiscoveryPlan.model_validate_json(line)
            else:
                records.append(ProgramRecord.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ConfigurationError(f"[{path}] line {number} is no record of a search: {first['msg']}") from error
    return plan, records

"""Run candidates twice on tasks in the sandbox, with the data that they request; their metrics and their cost."""

import fcntl
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.discovery.records import Figures, TaskResult
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.lab.evaluation.bootstrap import TIE
from es_ttc.rescorers.programs.catalogue import REVERSED
from es_ttc.rescorers.programs.interface import PASSAGE, QUERY, TOPIC_LENGTH
from es_ttc.rescorers.programs.source import RefusalReason, Refused
from es_ttc.sandbox.process import Process, ProcessLimits, line
from es_ttc.sandbox.shared import Shared, SharedChunks, SharedTexts
from es_ttc.vectors.chunks import Granularity
from es_ttc.vectors.tokens import Float32

_DEFINED_SECONDS = 5
_BATCH = 64  # number of texts encoded between two checks of the clock
_PROBE = "a"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one candidate.

    Seconds for one task without the encoder's; MiB beside the interpreter, numpy and the task's arrays; the cost ratio
    c and the encoder's seconds over all tasks.
    """

    seconds: float = 20.0
    memory_mb: int = 1024
    cost: float = 50.0
    encoding: float = 900.0


@dataclass(slots=True)
class SandboxUsage:
    """The data that a program has read of one task, counted as in the paper."""

    readings: set[str] = field(default_factory=set)
    index_texts: int = 0
    query_texts: int = 0


@dataclass(slots=True)
class EncodingBudget:
    """The remaining budget of encoding, over all tasks."""

    base: int
    limits: Limits
    texts: int = 0
    seconds: float = 0.0

    def add(self, texts: int) -> None:
        """Count texts."""
        self.texts += texts
        if self.base + self.texts > self.limits.cost * self.base:
            raise Refused(RefusalReason.COST, f"a cost ratio above {self.limits.cost:g}")

    def spend(self, seconds: float) -> None:
        """Add time of the encoder."""
        self.seconds += seconds
        if self.seconds > self.limits.encoding:
            raise Refused(RefusalReason.COST, f"more than {self.limits.encoding:g} seconds of the encoder")


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """The result of one program on one task."""

    scores: Float32
    usage: SandboxUsage
    seconds: float


def run(
    source: str, tasks: Sequence[DiscoveryTask], limits: Limits, *, hash_seed: int = 0, restricted: bool = True
) -> list[ProgramRun]:
    """Run a program on tasks in a sandboxed process (`restricted` but in tests of it); `hash_seed` orders its sets."""
    allowance = ProcessLimits(limits.memory_mb, int(limits.seconds * len(tasks)) + _DEFINED_SECONDS)
    with Process(allowance, hash_seed) as process:
        process.await_ready()
        process.begin(source, limits.seconds, restricted=restricted)
        bill = EncodingBudget(sum(sum(task.size) for task in tasks), limits)
        runs = []
        for task in tasks:
            counted = _Counted(task, bill)
            scores, seconds = process.rank(task.inputs, counted, limits.seconds)
            runs.append(ProgramRun(scores, counted.usage, seconds))
        return runs


class _Counted:
    """The data of one task for a program, with their cost."""

    def __init__(self, task: DiscoveryTask, bill: EncodingBudget) -> None:
        self.usage = SandboxUsage()
        self._task = task
        self._bill = bill

    def chunks(self, granularity: Granularity) -> SharedChunks:
        """Return the documents' chunks."""
        pieces = self._task.chunks[granularity]
        self._count(granularity, pieces.count)
        return pieces

    def chunk_texts(self, granularity: Granularity) -> SharedTexts:
        """Return the chunks' texts."""
        return self._task.chunk_texts[granularity]

    def document_texts(self) -> SharedTexts:
        """Return the documents' texts."""
        self._count("texts", 0)
        return self._task.document_texts

    def view(self, adapter: str, max_length: int | None) -> Shared:
        """Return the documents under another adapter, unchanged where there is no such view; or their openings."""
        count = self._task.size[1]
        if (adapter, max_length) == (QUERY, None):
            self._count(REVERSED, 0 if self._task.reversed is None else count)
            return self._task.inputs.documents if self._task.reversed is None else self._task.reversed
        if (adapter, max_length) == (PASSAGE, TOPIC_LENGTH):
            self._count("topic", count)
            return self._task.topics
        if adapter != PASSAGE:
            self._count(REVERSED if adapter == QUERY else adapter, count)
        return self._task.inputs.documents

    def encode(self, texts: list[str], adapter: str, dimensions: int | None, max_length: int | None) -> Float32:
        """Return the texts' vectors."""
        self.usage.query_texts += len(texts)
        self._bill.add(len(texts))
        parts = [np.zeros((0, min(dimensions or self._dims, self._dims)), np.float32)]
        for start in range(0, len(texts), _BATCH):
            began = time.monotonic()
            parts.append(self._encoded(texts[start : start + _BATCH], adapter, dimensions, max_length))
            self._bill.spend(time.monotonic() - began)
        return np.concatenate(parts)

    def _encoded(self, texts: list[str], adapter: str, dimensions: int | None, max_length: int | None) -> Float32:
        try:
            return self._task.encode(texts, adapter, dimensions, max_length)
        except Exception as error:
            self._task.encode([_PROBE])  # an unavailable encoder fails here too, which ends the search, not a candidate
            raise Refused(RefusalReason.FAILED, line(f"encode_fn: {type(error).__name__}: {error}")) from error

    @property
    def _dims(self) -> int:
        return self._task.inputs.size[2]

    def _count(self, reading: str, texts: int) -> None:
        if reading not in self.usage.readings:
            self.usage.readings.add(reading)
            self.usage.index_texts += texts
            self._bill.add(texts)


_HASH_SEEDS = (0, 1)  # hash seeds of the two processes of one evaluation, so that the order of a set of texts differs


@dataclass
class Evaluator:
    """Measures programs on tasks, one at a time on this machine."""

    tasks: Sequence[DiscoveryTask]
    limits: Limits
    lock: Path

    def evaluate(self, source: str) -> tuple[Figures, dict[str, NDArray[np.float64]]]:
        """Return a program's figures, and the metric of each query by task."""
        with _held(self.lock):
            first, second = (run(source, self.tasks, self.limits, hash_seed=seed) for seed in _HASH_SEEDS)
        digest = hashlib.sha256()
        for task, one, other in zip(self.tasks, first, second, strict=True):
            _same(task, one, other)
            digest.update(one.scores.tobytes())
        values = {task.name: task.measure(one.scores) for task, one in zip(self.tasks, first, strict=True)}
        found = {task.name: _on_task(task, one, values[task.name]) for task, one in zip(self.tasks, first, strict=True)}
        deltas = np.array([one.delta for one in found.values()])
        figures = Figures(
            tasks=found,
            mean=float(deltas.mean()),
            wins=int(np.sum(deltas > TIE)),
            ties=int(np.sum(np.abs(deltas) <= TIE)),
            losses=int(np.sum(deltas < -TIE)),
            cost=cost_ratio(list(found.values())),
            fingerprint=digest.hexdigest()[:16],
        )
        return figures, values


def cost_ratio(tasks: Sequence[TaskResult]) -> float:
    """Return the paper's c over tasks: (T_base + T_prog) / T_base (section 3.3)."""
    base = sum(task.queries + task.documents for task in tasks)
    return (base + sum(task.index_texts + task.query_texts for task in tasks)) / base


def _same(task: DiscoveryTask, one: ProgramRun, other: ProgramRun) -> None:
    if one.scores.tobytes() != other.scores.tobytes() or one.usage != other.usage:
        raise Refused(RefusalReason.DETERMINISTIC, f"two runs on [{task.name}] gave different scores")


def _on_task(task: DiscoveryTask, ran: ProgramRun, values: NDArray[np.float64]) -> TaskResult:
    queries, documents = task.size
    return TaskResult(
        value=float(values.mean()),
        delta=float((values - task.baseline).mean()),
        queries=queries,
        documents=documents,
        index_texts=ran.usage.index_texts,
        query_texts=ran.usage.query_texts,
        readings=tuple(sorted(ran.usage.readings)),
        seconds=round(ran.seconds, 3),
    )


@contextmanager
def _held(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

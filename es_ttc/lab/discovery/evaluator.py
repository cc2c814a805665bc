"""Evaluate a program once on all tasks: run it twice, and compute the metrics and the cost of its scores."""

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_ttc.lab.discovery.records import Figures, TaskResult
from es_ttc.lab.discovery.sandboxed import Limits, ProgramRun, run
from es_ttc.lab.discovery.tasks import Task
from es_ttc.lab.evaluation.bootstrap import TIE
from es_ttc.rescorers.programs.source import Reason, Refused

_HASH_SEEDS = (0, 1)
"""Hash seeds of the two processes of one evaluation, so that the order of a set of texts differs."""


class Evaluator:
    """Measures programs on tasks, one at a time on this machine."""

    def __init__(self, tasks: Sequence[Task], limits: Limits, lock: Path) -> None:
        self.tasks = tasks
        self._limits = limits
        self._lock = lock

    def evaluate(self, source: str) -> tuple[Figures, dict[str, NDArray[np.float64]]]:
        """Return a program's figures, and the metric of each query by task."""
        with _held(self._lock):
            first, second = (run(source, self.tasks, self._limits, hash_seed=seed) for seed in _HASH_SEEDS)
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
    base = sum(one.queries + one.documents for one in tasks)
    return (base + sum(one.index_texts + one.query_texts for one in tasks)) / base


def _same(task: Task, one: ProgramRun, other: ProgramRun) -> None:
    if one.scores.tobytes() != other.scores.tobytes() or one.usage != other.usage:
        raise Refused(Reason.DETERMINISTIC, f"two runs on [{task.name}] gave different scores")


def _on_task(task: Task, ran: ProgramRun, values: NDArray[np.float64]) -> TaskResult:
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

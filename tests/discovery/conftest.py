"""Small tasks on the real encoder, made once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.lab.demo import limit_style
from es_ttc.lab.discovery.evaluator import Evaluator, Limits
from es_ttc.lab.discovery.tasks import DiscoveryTask, task_of
from es_ttc.lab.evaluation.datasets import Collection, Document

SENTENCES = (
    "Honey bees live in hives. They make honey from nectar.",
    "A beekeeper takes honey in summer.\n\nWasps make none.",
    "The night train to Rome leaves at nine. It has beds.",
    "Hash tables map keys to values. Collisions are chained.",
    "Rome was not built in a day. Trains reach it since 1856.",
    "A dictionary lists words. Some programs call maps so.",
)
BEES = Collection(
    "bees",
    "train",
    tuple(Document(f"d{place}", "", text) for place, text in enumerate(SENTENCES)),
    {"q1": "insects that make honey", "q2": "sleeper rail journey", "q3": "associative array"},
    {"q1": {"d0": 1, "d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1, "d5": 1}},
)


@pytest.fixture(scope="session")
def tasks(encoder: Encoder) -> list[DiscoveryTask]:
    """Two tasks: six documents of some sentences, twelve profiles."""
    return [task_of(BEES, encoder), task_of(limit_style.generate(documents=12, queries=6), encoder)]


@pytest.fixture(scope="session")
def bees(tasks: list[DiscoveryTask]) -> DiscoveryTask:
    """The first of the tasks."""
    return tasks[0]


@pytest.fixture
def evaluator_of(tmp_path: Path) -> Callable[..., Evaluator]:
    """Makes evaluators with small limits."""

    def make(tasks: list[DiscoveryTask], *, seconds: float = 3.0, memory_mb: int = 256) -> Evaluator:
        return Evaluator(tasks, Limits(seconds=seconds, memory_mb=memory_mb), tmp_path / "lock")

    return make

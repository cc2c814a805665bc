"""A candidate ends nothing but itself: whatever it does, the loop records its failure and goes on."""

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from es_ttc.errors import EncoderError
from es_ttc.lab.discovery import evaluator as evaluating
from es_ttc.lab.discovery import screening
from es_ttc.lab.discovery.evaluator import Evaluator, Limits, run
from es_ttc.lab.discovery.loop import ReplayProposer, search_programs
from es_ttc.lab.discovery.records import DiscoveryPlan, ProgramRecord, ProposedProgram, SearchLog, read_memory
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers.programs.source import RefusalReason, Refused
from tests.discovery.conftest import bees, tasks
from tests.support.children import pipes_and_memory, running

__all__ = ["bees", "tasks"]

LIMITS = Limits(seconds=1.0, memory_mb=256, cost=40)
PLAN = DiscoveryPlan(encoder="minilm", identity="x", seed=1, proposer="replay", tasks=())
HEAD = """import os, signal, struct, sys, time
import numpy as np
DOOR = int(sys.argv[1])
def message(about, payload=b"", size=None):
    os.write(DOOR, struct.pack("<II", len(about) if size is None else size, len(payload)) + about + payload)
def encode(count, payload):
    message(b'{"ask": "encode", "adapter": "text-matching", "count": %d}' % count, payload)
class Mute(Exception):
    def __str__(self):
        raise self
"""
TRICKLE = """os.write(DOOR, struct.pack("<II", 60000, 0))
    while True:
        end = time.monotonic() + 0.2
        while time.monotonic() < end: pass
        os.write(DOOR, b"[")"""

ENDLESS = (RefusalReason.TIME, RefusalReason.COST)
"""Which one is reached first depends on the machine."""

HOSTILE: dict[str, tuple[str, RefusalReason | tuple[RefusalReason, ...]]] = {
    "encodes with room for no text": ("ctx.encode_fn(['a'], max_length=1)", RefusalReason.FAILED),
    "encodes with sizes that are none": ("ctx.encode_fn(['a'], max_length='x')", RefusalReason.FAILED),
    "encodes with a huge size": ("ctx.encode_fn(['a'], max_length=10**30)", RefusalReason.FAILED),
    "encodes what is no UTF-8": ("ctx.encode_fn([chr(0xD800)])", RefusalReason.FAILED),
    "asks for a view that there is not": (
        'message(b\'{"ask": "view", "adapter": "text-matching", "max_length": 1}\')',
        RefusalReason.FAILED,
    ),
    "sends a byte now and then": (TRICKLE, RefusalReason.TIME),
    "sends 60 MB of brackets": ("message(b'[' * 10, size=60_000_000)", RefusalReason.CRASHED),
    "nests": ("message(b'[' * 60_000)", RefusalReason.CRASHED),
    "nests in an object": ("message(b'{\"ask\": ' + b'[' * 900 + b']' * 900 + b'}')", RefusalReason.CRASHED),
    "sends no JSON": ("message(bytes([255, 254]))", RefusalReason.CRASHED),
    "sends a reason that is none": ("message(b'{\"reason\": [1]}')", RefusalReason.CRASHED),
    "sends channels that nobody wants": ("message(b'{\"note\": \"x\"}', b'1234')", RefusalReason.CRASHED),
    "sends texts that are none": (
        'message(b\'{"ask": "encode", "adapter": "text-matching", "count": 1}\', struct.pack(\'<q\', 1) + b\'\\xff\')',
        RefusalReason.CRASHED,
    ),
    "sends texts that end before they begin": (
        'message(b\'{"ask": "encode", "adapter": "text-matching", "count": 2}\', struct.pack(\'<qq\', 9, 1) + b\'a\')',
        RefusalReason.CRASHED,
    ),
    "sends more texts than there are bytes": (
        'message(b\'{"ask": "encode", "adapter": "text-matching", "count": 4000000000}\')',
        RefusalReason.CRASHED,
    ),
    "asks without end": ('while True: message(b\'{"ask": "doc_texts"}\')', ENDLESS),
    "tells attempts without end": ('while True: message(b\'{"attempt": "x"}\')', ENDLESS),
    "closes its socket": ("os.close(DOOR)", RefusalReason.CRASHED),
    "closes its socket and stays": ("os.close(DOOR)\n    while True: pass", RefusalReason.CRASHED),
    "kills its group": ("os.killpg(0, 9)", RefusalReason.ESCAPED),
    "aborts": ("os.abort()", RefusalReason.ESCAPED),
    "raises a long text": ("raise ValueError('x' * 10_000_000)", RefusalReason.FAILED),
    "raises what is no UTF-8": ("raise ValueError(chr(0xD800))", RefusalReason.FAILED),
    "raises without a text": ("raise Mute", RefusalReason.FAILED),
    "recurses": ("def f(): return f()\n    f()", RefusalReason.FAILED),
}
GOOD = "def program(Q, D, S, ctx):\n    return -S\n"


def source(body: str) -> str:
    return f"{HEAD}def program(Q, D, S, ctx):\n    {body}\n    return S\n"


@pytest.fixture
def open_wall(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The texts are not checked, so that what the processes do is seen."""
    monkeypatch.setattr(screening, "check", lambda _: None)
    monkeypatch.setattr(screening.ProposedPrograms, "add", lambda *_: None)
    monkeypatch.setattr(evaluating, "run", partial(run, restricted=False))
    yield
    assert not running("es_ttc.sandbox.child")


@pytest.fixture
def searched(tmp_path: Path, bees: DiscoveryTask) -> Callable[[list[str]], list[ProgramRecord]]:
    """Drives the loop by some sources and returns what it has written to the disk."""

    def drive(sources: list[str]) -> list[ProgramRecord]:
        proposer = ReplayProposer([ProposedProgram(source=one, origin="replay") for one in sources])
        evaluator = Evaluator([bees], LIMITS, tmp_path / "lock")
        with SearchLog(tmp_path / "search") as memory:
            memory.begin(PLAN)
            list(search_programs(memory, evaluator, proposer, len(sources), distance=0.0))
        return read_memory(tmp_path / "search")[1]

    return drive


@pytest.mark.usefixtures("open_wall")
@pytest.mark.slow
def test_a_hostile_candidate_ends_itself_and_the_search_goes_on(
    searched: Callable[[list[str]], list[ProgramRecord]], bees: DiscoveryTask
) -> None:
    assert bees.inputs.size  # shared at the first use
    held = pipes_and_memory()
    tracemalloc.start()
    records = searched([*(source(body) for body, _ in HOSTILE.values()), GOOD])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wrong = {
        name: (record.reason, record.detail)
        for (name, (_, reason)), record in zip(HOSTILE.items(), records, strict=False)
        if record.reason not in (reason if isinstance(reason, tuple) else (reason,))
    }
    assert not wrong
    assert records[-1].verdict == "measured"
    assert all(len(record.detail) < 400 and "\n" not in record.detail for record in records)
    assert peak < 150e6
    assert not pipes_and_memory() - held


def test_texts_that_cannot_be_programs_are_recorded_too(searched: Callable[[list[str]], list[ProgramRecord]]) -> None:
    deep = "def program(Q, D, S, ctx):\n    return " + " + ".join(["S"] * 1100) + "\n"
    records = searched([deep, f"{GOOD}# \ud800\n", "\ud800", "\0", GOOD.replace("-S", "S.\ud800"), GOOD])
    assert [record.reason for record in records[:1]] == [RefusalReason.SYNTAX]
    assert [record.reason for record in records[2:5]] == [RefusalReason.SYNTAX] * 3
    assert [record.verdict for record in records].count("measured") == 1


def test_an_encoder_that_has_gone_is_no_fault_of_a_candidate(
    bees: DiscoveryTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise EncoderError("nobody answers")

    asks = "def program(Q, D, S, ctx):\n    ctx.encode_fn(['a'])\n    return S\n"
    with pytest.raises(EncoderError, match="nobody answers"):
        run(asks, [replace(bees, encode=gone)], LIMITS)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="encode_fn: ConfigurationError"):
        run(asks.replace("['a']", "['a'], max_length=1"), [bees], LIMITS)

"""The whole loop: every constraint has its reason, a memory survives, a search repeats itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from es_ttc.errors import ConfigurationError
from es_ttc.lab.discovery.evaluator import Evaluator
from es_ttc.lab.discovery.loop import Proposer, ReplayProposer, search_programs
from es_ttc.lab.discovery.proposers.grammar import GrammarProposer
from es_ttc.lab.discovery.records import (
    MEMORY_FILE,
    DiscoveryPlan,
    ProgramRecord,
    ProposedProgram,
    SearchLog,
    read_memory,
)
from es_ttc.lab.discovery.seeds import seeds
from es_ttc.lab.discovery.summary import frontier
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers.programs.source import RefusalReason

PLAN = DiscoveryPlan(encoder="minilm", identity="x", seed=3, proposer="grammar", tasks=())
DISTANCE = 0.02

GOOD = """import numpy as np
from es_ttc.rescorers.programs.primitives.fusion import reciprocal_rank_fusion
def program(Q, D, S, ctx):
    return reciprocal_rank_fusion([S, ctx.lexicon().overlap(ctx.query_texts)])
"""
UNSTEADY = """import numpy as np
def program(Q, D, S, ctx):
    first = list(set(" ".join(ctx.query_texts).split()))[0]
    return S * np.float32(len(first)) + np.float32(ctx.query_texts[0].find(first))
"""
SAME_SCORES = """import numpy as np
from es_ttc.rescorers.programs.primitives.fusion import ranks
def program(Q, D, S, ctx):
    words = ctx.lexicon().overlap(ctx.query_texts)
    total = np.zeros(S.shape, np.float32)
    for channel in (S, words):
        total = total + np.float32(1) / ranks(channel)
    return total
"""

RECORDED: list[tuple[str, RefusalReason | None]] = [
    (GOOD, None),
    (GOOD, RefusalReason.EVALUATED_ONCE),
    (f"# again\n{GOOD}", RefusalReason.EVALUATED_ONCE),
    (SAME_SCORES, RefusalReason.NOT_DISTINCT),
    ("def program(Q, D, S, ctx):\n    return S if len(D) == 6 else -S\n", RefusalReason.TASK_UNIVERSAL),
    ("import random\ndef program(Q, D, S, ctx):\n    return S * random.random()\n", RefusalReason.DETERMINISTIC),
    (UNSTEADY, RefusalReason.DETERMINISTIC),
    ("import torch\ndef program(Q, D, S, ctx):\n    return S\n", RefusalReason.EXTERNAL),
    ("def program(Q, D, S, ctx, weight=0.5):\n    return S * weight\n", RefusalReason.CONSTANTS),
    ("def program(Q, D, S, ctx):\n    while True:\n        S = S + 1\n    return S\n", RefusalReason.TIME),
    (
        "import numpy as np\ndef program(Q, D, S, ctx):\n    held = []\n    while True:\n"
        "        held.append(np.ones((1000, 1000)))\n    return S\n",
        RefusalReason.MEMORY,
    ),
    ("def program(Q, D, S, ctx):\n    return open('/etc/passwd')\n", RefusalReason.FORBIDDEN),
    ("import socket\ndef program(Q, D, S, ctx):\n    return socket.socket()\n", RefusalReason.FORBIDDEN),
    ("import os\ndef program(Q, D, S, ctx):\n    return os.fork()\n", RefusalReason.FORBIDDEN),
    ("import numpy as np\ndef program(Q, D, S, ctx):\n    return S * np.nan\n", RefusalReason.NOT_FINITE),
    ("def program(Q, D, S, ctx):\n    return S[:1, :1]\n", RefusalReason.SHAPE),
    ("def program(Q, D, S, ctx):\n    return S @ Q\n", RefusalReason.FAILED),
    ("def program(Q, D, S, ctx):\n    return ctx.encode_fn(['a'] * 9000)\n", RefusalReason.COST),
    ("def program(Q, D, S, ctx):\nreturn S\n", RefusalReason.SYNTAX),
    ("I am sorry, I cannot write programs.", RefusalReason.SYNTAX),
    ("", RefusalReason.NO_PROPOSAL),
    ("def program(Q, D, S, ctx):\n    return -S\n", None),
]


def searched(
    folder: Path, evaluator: Evaluator, proposer: Proposer, generations: int, begin: Sequence[ProposedProgram] = ()
) -> list[ProgramRecord]:
    with SearchLog(folder) as memory:
        if memory.plan is None:
            memory.begin(PLAN)
        list(search_programs(memory, evaluator, proposer, generations, seeds=begin, distance=DISTANCE))
        return list(memory.records)


@pytest.mark.slow
def test_a_recording_drives_the_loop_and_every_reason_is_the_right_one(
    tasks: list[DiscoveryTask], evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    proposer = ReplayProposer([ProposedProgram(source=source, origin="replay") for source, _ in RECORDED])
    evaluator = evaluator_of(tasks, memory_mb=128)
    records = searched(tmp_path / "s", evaluator, proposer, len(RECORDED) + 1)
    found = [(record.name, record.reason) for record in records]
    expected = [(f"g{place:03d}", reason) for place, (_, reason) in enumerate(RECORDED, 1)]
    assert found == [*expected, (f"g{len(RECORDED) + 1:03d}", RefusalReason.NO_PROPOSAL)]
    plan, kept = read_memory(tmp_path / "s")
    assert (plan, kept) == (PLAN, records)
    good = records[0]
    assert good.mean is not None
    assert good.admitted == (good.mean > 0)
    assert [one.name for one in frontier(records)] == (["g001"] if good.mean > 0 else [])


@pytest.mark.slow
def test_a_search_repeats_itself_and_goes_on_as_if_never_stopped(
    tasks: list[DiscoveryTask], evaluator_of: Callable[..., Evaluator], tmp_path: Path
) -> None:
    evaluator = evaluator_of(tasks)
    begin = seeds(cheap=True)[1:3]
    whole = searched(tmp_path / "whole", evaluator, GrammarProposer(5, DISTANCE), 3, begin)
    for generations in (0, 1, 3):
        parted = searched(tmp_path / "parted", evaluator, GrammarProposer(5, DISTANCE), generations, begin)
    assert _results(parted) == _results(whole)
    costs = [[one.cost for one in some if one.cost is not None] for some in (parted, whole)]
    assert costs[0] == costs[1] != []
    fronts = [[one.name for one in frontier(some)] for some in (parted, whole)]
    assert fronts[0] == fronts[1]
    assert [record.generation for record in whole] == [-1, 0, 1, 2, 3]
    other = searched(tmp_path / "other", evaluator, GrammarProposer(6, DISTANCE), 1, begin)
    assert other[2].proposal.source != whole[2].proposal.source


def test_a_torn_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    with SearchLog(tmp_path) as memory:
        memory.begin(PLAN)
        for generation in (1, 2):
            memory.append(_rejected(generation))
    path = tmp_path / MEMORY_FILE
    whole = path.read_bytes()
    first = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for size in sorted({*range(0, len(whole), 11), *range(first - 2, first + 3), len(whole) - 1}):
        path.write_bytes(whole[:size])
        kept = whole[:size].count(b"\n")
        with SearchLog(tmp_path) as memory:
            assert (memory.plan is not None, len(memory.records)) == (kept > 0, max(0, kept - 1))
        assert path.read_bytes() == whole[: whole[:size].rfind(b"\n") + 1]
    path.write_bytes(whole[: first + 5])
    assert len(read_memory(tmp_path)[1]) == 1  # a reader leaves the line that is being written
    with SearchLog(tmp_path) as memory:
        memory.append(_rejected(2))
    assert path.read_bytes() == whole


def test_damage_in_the_midst_is_told(tmp_path: Path) -> None:
    with SearchLog(tmp_path) as memory:
        memory.begin(PLAN)
        memory.append(_rejected(1))
    path = tmp_path / MEMORY_FILE
    path.write_bytes(path.read_bytes().replace(b'"generation":1', b'"generation":"x"'))
    with pytest.raises(ConfigurationError, match="line 2"):
        SearchLog(tmp_path)


def test_two_processes_do_not_write_one_memory(tmp_path: Path) -> None:
    with SearchLog(tmp_path), pytest.raises(ConfigurationError, match="another process"):
        SearchLog(tmp_path)


@pytest.mark.slow
def test_a_killed_search_leaves_a_whole_memory_and_ends_where_an_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_TTC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    begin = ["--generated", "limit-style", "--max-documents", "12", "--max-queries", "6"]
    begin += ["--seeds", "none", "--encoder", "minilm@onnx"]
    folder = tmp_path / "killed"
    kills = 0
    for wait in (0.0, 0.6):
        process = _start(folder, [] if (folder / MEMORY_FILE).exists() and _plan_written(folder) else begin)
        lines = _lines(folder)
        deadline = time.monotonic() + 60
        while process.poll() is None and _lines(folder) <= lines and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate(timeout=60)
        if _plan_written(folder):
            read_memory(folder)  # whole
    assert kills
    _await_no_orphans(10)
    last = _start(folder, [])
    assert last.wait(timeout=120) == 0, last.communicate()
    unbroken = _start(tmp_path / "unbroken", begin)
    assert unbroken.wait(timeout=120) == 0, unbroken.communicate()
    assert _results(read_memory(folder)[1]) == _results(read_memory(tmp_path / "unbroken")[1])


def _await_no_orphans(seconds: float) -> None:
    """A child whose parent was killed while it still imports ends as soon as it reads from nobody."""
    deadline = time.monotonic() + seconds
    while orphans := [one for one in psutil.process_iter(["cmdline"]) if one.ppid() == 1 and _is_child(one)]:
        assert time.monotonic() < deadline, orphans
        time.sleep(0.1)


def _is_child(process: psutil.Process) -> bool:
    return any("es_ttc.sandbox.child" in part for part in process.info["cmdline"] or ())


def _start(folder: Path, more: Sequence[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "es_ttc", "discover", "run", str(folder), *more, "--generations", "4"]
    return subprocess.Popen(
        command, env={**os.environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )


def _plan_written(folder: Path) -> bool:
    return _lines(folder) > 0


def _lines(folder: Path) -> int:
    path = folder / MEMORY_FILE
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _rejected(generation: int) -> ProgramRecord:
    return ProgramRecord(
        generation=generation,
        name=f"g{generation:03d}",
        proposal=ProposedProgram(source="é\n", origin="replay"),
        verdict="rejected",
        reason=RefusalReason.SYNTAX,
    )


def _results(records: Sequence[ProgramRecord]) -> list[dict[str, Any]]:
    """All that a search found: everything but times."""
    found = [json.loads(record.model_dump_json()) for record in records]
    for record in found:
        del record["seconds"]
        for task in record["tasks"].values():
            del task["seconds"]
    return found

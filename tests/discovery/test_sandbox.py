"""The second wall: what a program could do if its text were not checked, it cannot do either."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_ttc.errors import ConfigurationError
from es_ttc.lab.discovery.evaluator import Limits, run
from es_ttc.lab.discovery.tasks import DiscoveryTask
from es_ttc.rescorers.programs.source import RefusalReason, Refused
from es_ttc.sandbox.shared import Shared
from tests.support.children import pipes_and_memory, running

LIMITS = Limits(seconds=2, memory_mb=128, cost=20)
HEAD = "import ctypes, os, socket, subprocess, sys, threading, time\nimport numpy as np\n"

ATTACKS = {
    "loops forever": ("while True: pass", RefusalReason.TIME),
    "sleeps": ("time.sleep(60)", RefusalReason.ESCAPED),
    "allocates without bound": ("held = []\n    while True: held.append(np.ones(1 << 18))", RefusalReason.MEMORY),
    "allocates at once": ("bytearray(1 << 40)", RefusalReason.MEMORY),
    "reads a file": ("open('/etc/passwd').read()", RefusalReason.ESCAPED),
    "writes a file": ("open({target!r}, 'w').write('x')", RefusalReason.ESCAPED),
    "writes a file by the system call": (
        "ctypes.CDLL(None).syscall(2, {target!r}.encode(), 577, 420)",
        RefusalReason.ESCAPED,
    ),
    "deletes a file": ("os.unlink({target!r})", RefusalReason.ESCAPED),
    "lists a folder": ("os.listdir('/')", RefusalReason.ESCAPED),
    "opens a socket": ("socket.socket()", RefusalReason.ESCAPED),
    "forks": ("os.fork()", RefusalReason.ESCAPED),
    "starts a process": ("subprocess.run(['true'])", RefusalReason.ESCAPED),
    "starts a thread": ("threading.Thread(target=print).start()", RefusalReason.ESCAPED),
    "kills its parent": ("os.kill(os.getppid(), 9)", RefusalReason.ESCAPED),
    "lifts its limits": ("__import__('resource').setrlimit(9, (-1, -1))", RefusalReason.ESCAPED),
    "traces": ("ctypes.CDLL(None).ptrace(0, 0, 0, 0)", RefusalReason.ESCAPED),
    "breaks its memory": ("ctypes.string_at(0)", RefusalReason.CRASHED),
    "ends itself": ("os._exit(0)", RefusalReason.CRASHED),
    "leaves": ("sys.exit(0)", RefusalReason.FAILED),
    "raises": ("raise ValueError('no')", RefusalReason.FAILED),
    "writes NaN": ("return S * np.nan", RefusalReason.NOT_FINITE),
    "writes infinity": ("return S + np.inf", RefusalReason.NOT_FINITE),
    "returns another shape": ("return S[:, :1]", RefusalReason.SHAPE),
    "returns whole numbers": ("return S.astype(int)", RefusalReason.SHAPE),
    "encodes without bound": ("ctx.encode_fn(['a'] * 1000); return S", RefusalReason.COST),
    "asks for what there is not": ("ctx.encode_fn([1]); return S", RefusalReason.FAILED),
    "floods its output": ("while True: os.write(2, b'x' * 4096)", RefusalReason.TIME),
}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A file that must stay as it is."""
    path = tmp_path / "host.txt"
    path.write_text("untouched")
    yield path
    assert path.read_text() == "untouched"
    assert [one.name for one in tmp_path.iterdir()] == ["host.txt"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_ends_its_process_and_nothing_else(attack: str, bees: DiscoveryTask, target: Path) -> None:
    body, reason = ATTACKS[attack]
    before, held = bees.inputs.documents.read(), pipes_and_memory()
    source = f"{HEAD}def program(Q, D, S, ctx):\n    {body.replace('{target!r}', repr(str(target)))}\n"
    with pytest.raises(Refused) as caught:
        run(source, [bees], LIMITS, restricted=False)
    assert caught.value.reason == reason, caught.value
    assert bees.inputs.documents.read() == before
    assert not pipes_and_memory() - held
    assert not running("es_ttc.sandbox.child")


def test_a_refused_program_error_names_the_forbidden_call(bees: DiscoveryTask) -> None:
    source = f"{HEAD}def program(Q, D, S, ctx):\n    return open('/etc/passwd')\n"
    with pytest.raises(Refused, match=r"tried \[open /etc/passwd\]"):
        run(source, [bees], LIMITS, restricted=False)


def test_the_inputs_cannot_be_changed_by_any_way(bees: DiscoveryTask) -> None:
    remap = (
        "address = ctx.chunks('sentences').vectors.__array_interface__['data'][0]\n    "
        "page = address // 4096 * 4096\n    "
        "libc = ctypes.CDLL(None)\n    "
        "libc.mprotect(ctypes.c_void_p(page), 4096, 3)\n    "
        "ctypes.memset(address, 0, 4)\n    return S"
    )
    before = bees.chunks["sentences"].vectors.read()
    with pytest.raises(Refused):
        run(f"{HEAD}def program(Q, D, S, ctx):\n    {remap}\n", [bees], LIMITS, restricted=False)
    assert bees.chunks["sentences"].vectors.read() == before


def test_honest_linear_algebra_runs(bees: DiscoveryTask) -> None:
    source = (
        "import numpy as np\ndef program(Q, D, S, ctx):\n"
        "    u, s, v = np.linalg.svd(D, full_matrices=False)\n"
        "    w, e = np.linalg.eigh(D @ D.T)\n"
        "    x = np.linalg.lstsq(D.T, Q.T, rcond=None)[0]\n"
        "    big = np.ones((600, 600), np.float32) @ np.ones((600, 600), np.float32)\n"
        "    return (S + np.median(s) + w.max() + x.mean() + np.percentile(big, 50)).astype(np.float32)\n"
    )
    (ran,) = run(source, [bees], LIMITS)
    assert np.isfinite(ran.scores).all()


def test_the_encoders_time_is_limited_too(bees: DiscoveryTask) -> None:
    source = "def program(Q, D, S, ctx):\n    ctx.encode_fn(list(ctx.query_texts))\n    return S\n"
    with pytest.raises(Refused, match="encoder") as caught:
        run(source, [bees], Limits(encoding=0.0))
    assert caught.value.reason == RefusalReason.COST


def test_a_sandbox_that_cannot_be_locked_is_no_fault_of_the_program(bees: DiscoveryTask) -> None:
    with pytest.raises(ConfigurationError, match="lock"):
        run(f"{HEAD}def program(Q, D, S, ctx):\n    return S\n", [bees], Limits(memory_mb=2**43))


def test_code_that_changes_meanwhile_ends_the_search(bees: DiscoveryTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("es_ttc.sandbox.wire.edition", lambda: "older")
    with pytest.raises(ConfigurationError, match="to go on"):
        run("def program(Q, D, S, ctx):\n    return S\n", [bees], LIMITS)


def test_only_what_is_used_is_counted(bees: DiscoveryTask) -> None:
    q, n = bees.size
    source = (
        "from es_ttc.rescorers.programs.interface import QUERY\n"
        "from es_ttc.rescorers.programs.primitives.matching import max_sim\n"
        "def program(Q, D, S, ctx):\n"
        "    pieces = ctx.chunks('sentences')\n"
        "    again = ctx.chunks('sentences')\n"
        "    moved = ctx.encode_fn([text + ' ' + ctx.doc_texts[0] for text in ctx.query_texts], adapter=QUERY)\n"
        "    return max_sim(moved @ pieces.vectors.T, pieces.starts) + len(again.texts[0])\n"
    )
    (ran,) = run(source, [bees], LIMITS)
    assert ran.usage.readings == {"sentences", "texts"}
    assert ran.usage.index_texts == bees.chunks["sentences"].count > n
    assert ran.usage.query_texts == q


def test_documents_as_queries_are_counted_where_they_are_encoded(bees: DiscoveryTask) -> None:
    _, n = bees.size
    source = (
        "from es_ttc.rescorers.programs.interface import QUERY\n"
        "def program(Q, D, S, ctx):\n"
        "    return Q @ ctx.view(D, QUERY).T\n"
    )
    (ran,) = run(source, [bees], LIMITS)
    assert (ran.usage.readings, ran.usage.index_texts) == ({"reversed"}, 0)
    np.testing.assert_allclose(ran.scores, bees.queries @ bees.documents.T, atol=1e-6)
    others = np.roll(bees.documents, 1, axis=0)
    (ran,) = run(source, [replace(bees, reversed=Shared.of(others))], LIMITS)
    assert (ran.usage.readings, ran.usage.index_texts) == ({"reversed"}, n)
    np.testing.assert_allclose(ran.scores, bees.queries @ others.T, atol=1e-6)


def test_a_socket_of_the_host_stays_its_own(bees: DiscoveryTask) -> None:
    """Descriptors of the host are not there in the child: 0, 1, 2 and its own door."""
    near, far = socket.socketpair()
    with near, far:
        os.set_inheritable(far.fileno(), True)
        source = f"{HEAD}def program(Q, D, S, ctx):\n    os.write({far.fileno()}, b'hello')\n    return S\n"
        with pytest.raises(Refused, match="Bad file descriptor"):
            run(source, [bees], LIMITS, restricted=False)

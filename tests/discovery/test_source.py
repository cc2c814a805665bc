"""The part of Python that programs are written in."""

import numpy as np
import pytest

from es_ttc.lab.discovery.seeds import program_source
from es_ttc.rescorers.programs.catalogue import CATALOGUE
from es_ttc.rescorers.programs.interface import Context
from es_ttc.rescorers.programs.source import MAX_SOURCE_CHARACTERS, RefusalReason, Refused, compiled

PLAIN = "def program(Q, D, S, ctx):\n    return {}\n"

REFUSED = {
    "no Python": ("def f(", RefusalReason.SYNTAX),
    "a null byte": ("\0", RefusalReason.SYNTAX),
    "too long": ("#" * (MAX_SOURCE_CHARACTERS + 1), RefusalReason.SYNTAX),
    "nothing": ("", RefusalReason.INTERFACE),
    "another function": ("def f(Q, D, S, ctx):\n    return S\n", RefusalReason.INTERFACE),
    "two of them": (PLAIN.format("S") * 2, RefusalReason.INTERFACE),
    "other arguments": ("def program(q, d):\n    return q\n", RefusalReason.INTERFACE),
    "code outside functions": (f"for i in (1, 2):\n    pass\n{PLAIN.format('S')}", RefusalReason.INTERFACE),
    "torch": (f"import torch\n{PLAIN.format('S')}", RefusalReason.EXTERNAL),
    "another encoder": (f"from es_ttc.encoders import load_encoder\n{PLAIN.format('S')}", RefusalReason.EXTERNAL),
    "what a module imported": (
        f"from es_ttc.rescorers.programs.primitives.fusion import np\n{PLAIN.format('S')}",
        RefusalReason.EXTERNAL,
    ),
    "a relative import": (f"from . import interface\n{PLAIN.format('S')}", RefusalReason.EXTERNAL),
    "a table of numbers": (PLAIN.format(f"S + {[0.1] * 13}[0]"), RefusalReason.EXTERNAL),
    "many numbers": (PLAIN.format("S" + "".join(f" + {n}.5" for n in range(65))), RefusalReason.EXTERNAL),
    "a long number": (PLAIN.format("S * 12345678901234567890"), RefusalReason.EXTERNAL),
    "bytes": (PLAIN.format("S * len(b'abc')"), RefusalReason.EXTERNAL),
    "random": (f"import random\n{PLAIN.format('S')}", RefusalReason.DETERMINISTIC),
    "the clock": (f"import time\n{PLAIN.format('S')}", RefusalReason.DETERMINISTIC),
    "numpy's random": (f"import numpy as np\n{PLAIN.format('np.random.rand(2)')}", RefusalReason.DETERMINISTIC),
    "hashes": (PLAIN.format("S * hash(ctx.query_texts[0])"), RefusalReason.DETERMINISTIC),
    "ids of documents": (PLAIN.format("S * len(ctx.doc_ids)"), RefusalReason.TASK_UNIVERSAL),
    "a rule for one size": (PLAIN.format("S if len(D) == 46 else -S"), RefusalReason.TASK_UNIVERSAL),
    "a rule for one text": (PLAIN.format("S if 'honey' in ctx.query_texts[0] else -S"), RefusalReason.TASK_UNIVERSAL),
    "a table by size": (PLAIN.format("S * {46: 1.0, 186: 2.0}[len(D)]"), RefusalReason.TASK_UNIVERSAL),
    "texts": (PLAIN.format(f"S * len({'word ' * 100!r})"), RefusalReason.TASK_UNIVERSAL),
    "a parameter": ("def program(Q, D, S, ctx, k=3):\n    return S * k\n", RefusalReason.CONSTANTS),
    "a global": (f"def f():\n    global x\n    x = 1\n{PLAIN.format('S')}", RefusalReason.CONSTANTS),
    "state": (f"seen = []\n{PLAIN.format('S')}", RefusalReason.CONSTANTS),
    "a default that remembers": (f"def f(x=[]):\n    return x\n{PLAIN.format('S')}", RefusalReason.CONSTANTS),
    "files": (PLAIN.format("open('/etc/passwd')"), RefusalReason.FORBIDDEN),
    "files through numpy": (f"import numpy as np\n{PLAIN.format('np.load(1)')}", RefusalReason.FORBIDDEN),
    "files through an array": (PLAIN.format("S.tofile('x')"), RefusalReason.FORBIDDEN),
    "sockets": (f"import socket\n{PLAIN.format('S')}", RefusalReason.FORBIDDEN),
    "processes": (f"import subprocess\n{PLAIN.format('S')}", RefusalReason.FORBIDDEN),
    "eval": (PLAIN.format("eval('S')"), RefusalReason.FORBIDDEN),
    "getattr": (PLAIN.format("getattr(S, 'T')"), RefusalReason.FORBIDDEN),
    "an object's class": (PLAIN.format("S.__class__"), RefusalReason.FORBIDDEN),
    "a generator's frame": (PLAIN.format("(x for x in S).gi_frame"), RefusalReason.FORBIDDEN),
    "attributes by format": (PLAIN.format("'{0.__class__}'.format(S)"), RefusalReason.FORBIDDEN),
    "the context's inside": (PLAIN.format("ctx.stored"), RefusalReason.FORBIDDEN),
    "setting the context": (
        "def program(Q, D, S, ctx):\n    ctx.index_texts = 0\n    return S\n",
        RefusalReason.FORBIDDEN,
    ),
    "numpy under another name": (
        "import numpy as np\ndef program(Q, D, S, ctx):\n    n = np\n    return n.load('x')\n",
        RefusalReason.FORBIDDEN,
    ),
    "a class": (f"class A:\n    pass\n{PLAIN.format('S')}", RefusalReason.INTERFACE),
    "a decorator": (f"@print\n{PLAIN.format('S')}", RefusalReason.FORBIDDEN),
    "hiding a builtin": ("def program(Q, D, S, ctx):\n    __import__ = 1\n    return S\n", RefusalReason.FORBIDDEN),
}


@pytest.mark.parametrize("case", REFUSED)
def test_forbidden_source_is_refused_with_its_reason(case: str) -> None:
    source, reason = REFUSED[case]
    with pytest.raises(Refused) as caught:
        compiled(source)
    assert caught.value.reason == reason, caught.value


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_papers_programs_stand_inside(name: str) -> None:
    assert callable(compiled(program_source(CATALOGUE[name])))


def test_a_misspelt_primitive_is_named() -> None:
    source = f"from es_ttc.rescorers.programs.primitives.fusion import rank\n{PLAIN.format('rank(S)')}"
    with pytest.raises(Refused, match=r"\[ranks\]"):
        compiled(source)


def test_a_program_has_no_builtins_of_effect() -> None:
    program = compiled(f"import numpy as np\n\nHALF = 1 / 2\n\n\n{PLAIN.format('np.float32(HALF) * S')}")
    assert not {"open", "eval", "exec", "getattr", "compile"} & program.__globals__["__builtins__"].keys()
    half = program(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), np.ones((1, 1), np.float32), _context())
    assert half.tolist() == [[0.5]]


def _context() -> Context:
    def encode(*_: object, **__: object) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        return np.zeros((0, 2), np.float32)

    return Context(["q"], ["d"], ["0"], ["0"], encode)

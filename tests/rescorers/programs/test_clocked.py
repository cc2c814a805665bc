"""Programs that would run for ever end themselves, whatever they catch."""

import time

import numpy as np
import pytest

from es_ttc.rescorers.programs.interface import Context, ProgramError
from es_ttc.rescorers.programs.source import compiled
from es_ttc.vectors.tokens import Float32

LOOPS = {
    "while": "while True: pass",
    "that catches": """while True:
        try:
            while True: pass
        except: pass""",
    "that goes on after all": """while True:
        try: pass
        finally: continue""",
    "for": "for _ in range(999_999_999): pass",
    "comprehension": "[1 for _ in range(999_999_999) if 1 < 0]",
    "generator": "sum(1 for _ in range(999_999_999))",
    "lambda": "sorted(range(10**6), key=lambda one: sum(map(lambda other: other, range(10**6))))",
    "recursion": """def fork(n):
        return fork(n + 1) + fork(n + 1) if n < 200 else 0
    fork(0)""",
}


def call(source: str, seconds: float) -> Float32:
    one = np.ones((1, 2), np.float32)
    context = Context(["q"], ["d"], ["0"], ["0"], encode_fn=None)  # type: ignore[arg-type]
    return compiled(source, seconds=seconds)(one, one, one @ one.T, context)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_never_ends_is_ended(loop: str) -> None:
    source = f"def program(Q, D, S, ctx):\n    {LOOPS[loop]}\n    return S\n"
    began = time.monotonic()
    with pytest.raises(ProgramError, match=r"for more than 0\.1 s"):
        call(source, 0.1)
    assert time.monotonic() - began < 2


def test_a_program_that_ends_is_the_one_that_was_written() -> None:
    source = """def half(x):
    \"\"\"Docstring.\"\"\"
    return x / 2
def program(Q, D, S, ctx):
    total = 0
    for one in [value for value in range(4) if value > 1]:
        total += one
    while total > 3:
        total -= 1
    return half(S) + sum(map(lambda x: x * 0, [total])) + total
"""
    np.testing.assert_allclose(call(source, 5), [[1 + 3]])
    with pytest.raises(TypeError):
        call("def program(Q, D, S, ctx):\n    return max(iter(int, 1))\n", 5)

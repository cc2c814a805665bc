"""Calls of a child process, which may be killed at any moment."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import psutil
import pytest

from es_ttc.errors import EncoderError
from es_ttc.index.ingest.encode_parts import ChildProcess, ChildProcessEnded

Child: TypeAlias = ChildProcess[float, tuple[int, float]]


def sleeper(start: int) -> Callable[[float], tuple[int, float]]:
    """Return a function that counts its calls and sleeps; it refuses a negative argument."""
    if start < 0:
        raise ValueError(f"cannot start at {start}")
    count = start

    def call(seconds: float) -> tuple[int, float]:
        nonlocal count
        if seconds < 0:
            raise EncoderError(f"cannot sleep for {seconds}")
        time.sleep(seconds)
        count += 1
        return count, seconds

    return call


@pytest.fixture
def child() -> Iterator[Child]:
    made = ChildProcess(partial(sleeper, 7))
    yield made
    made.kill()


def test_one_function_answers_all_calls(child: Child) -> None:
    assert [child.call(0), child.call(0.01)] == [(8, 0), (9, 0.01)]


def test_an_error_shows_where_it_was_raised(child: Child) -> None:
    with pytest.raises(EncoderError, match="cannot sleep for -1") as raised:
        child.call(-1)
    (note,) = raised.value.__notes__
    assert note.startswith("in a child process:\n")
    assert "raise EncoderError" in note
    assert child.call(0) == (8, 0)


def test_a_function_that_cannot_be_made_is_tried_with_each_call() -> None:
    child = ChildProcess(partial(sleeper, -1))
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot start at -1"):
            child.call(0)
    child.kill()


@pytest.mark.parametrize("seconds", [0, 0.02, 0.1, 0.3])
def test_a_child_killed_while_it_starts_ends_its_own_call_only(child: Child, seconds: float) -> None:
    other = ChildProcess(partial(sleeper, 1))
    with ThreadPoolExecutor(2) as threads:
        ended, goes_on = threads.submit(child.call, 60), threads.submit(other.call, 0)
        time.sleep(seconds)
        psutil.Process(child.pid).kill()
        with pytest.raises(ChildProcessEnded):
            ended.result(timeout=20)
        assert goes_on.result(timeout=20) == (2, 0)
    with pytest.raises(ChildProcessEnded):
        child.call(0)
    child.kill()
    other.kill()
    assert not [each for each in psutil.Process().children() if each.pid in (child.pid, other.pid)]

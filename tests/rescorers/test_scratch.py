from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.threads import Scratch


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_reused_by_name_and_grows() -> None:
    scratch = Scratch()
    first = scratch.array("a", (10, 10), np.float32)
    assert first.shape == (10, 10)
    assert first.dtype == np.float32
    assert address(scratch.array("a", (5, 3), np.complex64)) == address(first)
    assert not np.shares_memory(scratch.array("b", (10, 10), np.float32), first)
    assert scratch.array("a", (1000, 10), np.float32).shape == (1000, 10)


def test_what_is_large_is_not_kept() -> None:
    scratch = Scratch()
    large = scratch.array("a", (4 * 2**20 + 1,), np.uint8)
    assert not np.shares_memory(scratch.array("a", (4 * 2**20 + 1,), np.uint8), large)


def test_every_thread_has_its_own() -> None:
    scratch = Scratch()
    mine = scratch.array("a", (10,), np.float32)
    theirs: list[NDArray[Any]] = []
    thread = Thread(target=lambda: theirs.append(scratch.array("a", (10,), np.float32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, theirs[0])

"""Memory that the compiled loops compute in, which a thread keeps."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from es_ttc.rescorers.threads import Scratch

_BYTES = 2**20  # more than most calls need

_scratch = Scratch()


def compute_in_room(loop: Callable[[NDArray[np.uint8]], int]) -> None:
    """Call a loop with as much room as it needs; it returns how many bytes it needs."""
    room = _scratch.array("room", (_BYTES,), np.uint8)
    needed = loop(room)
    if needed > len(room):
        loop(_scratch.array("room", (needed,), np.uint8))

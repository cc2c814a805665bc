"""The end of a child process with its parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """End this process by SIGTERM when its parent has ended, however that has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_after(partial(wait, [parent.sentinel]))


def end_with_input() -> None:
    """End this process by SIGTERM when its standard input has: with its parent, which writes nothing more to it."""
    _end_after(partial(os.read, 0, 1))


def _end_after(wait_for: Callable[[], object]) -> None:
    def watch() -> None:
        wait_for()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="es-ttc-parent", daemon=True).start()

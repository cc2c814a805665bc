"""What the processes of a gateway tell each other: whether they can rescore."""

import mmap
import os
import socket
from enum import IntEnum
from pathlib import Path

DRAIN_SECONDS = 30
"""How long requests that run may go on when a process ends."""
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of what the processes of a gateway share; the name is prometheus-client's."""


class ProcessState(IntEnum):
    """The state of a gateway's process."""

    NOT_ACCEPTING = 0
    LOADING = 1
    READY = 2


ProcessStates = mmap.mmap
"""The state of each process, a byte, in memory that all of them share."""


def open_states(length: int = 0) -> ProcessStates:
    """Return the states of so many processes; those that there are without a length."""
    with (Path(os.environ[SHARED_FOLDER]) / "states").open("w+b" if length else "r+b") as file:
        if length:
            file.truncate(length)
        return mmap.mmap(file.fileno(), length)


def refuse_further(listening: socket.socket) -> None:
    """Let no further connection into the backlog: Linux resets those that wait there when the socket closes."""
    listening.listen(0)


class OnlyProcess:
    """The process of a gateway that has one."""

    count = 1
    """Number of processes of the gateway."""

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return True


class WorkerProcess(OnlyProcess):
    """One of several processes, or of those that replace each other.

    Attributes:
        replaces_another: Whether other processes can rescore already, so that this one need not accept connections
            before it can.
    """

    def __init__(self, states: ProcessStates, slot: int, count: int) -> None:
        self.count = count
        self._states = states
        self._slot = slot
        self.replaces_another = ProcessState.READY in bytes(states)

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""
        self._states[self._slot] = ProcessState.READY if ready else ProcessState.LOADING

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return ProcessState.LOADING not in bytes(self._states)

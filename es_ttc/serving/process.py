"""What the processes of a gateway tell each other: whether they can rescore, and how many connections they have."""

import mmap
import os
import socket
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

DRAIN_SECONDS = 30
"""How long requests that run may go on when a process ends."""
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder of what the processes of a gateway share; the name is prometheus-client's."""


class ProcessState(IntEnum):
    """The state of a gateway's process."""

    NOT_ACCEPTING = 0
    LOADING = 1
    READY = 2


class ProcessStates(NamedTuple):
    """The state and the number of open connections of each process, in memory that all of them share."""

    states: memoryview
    connections: memoryview


def open_states(count: int = 0) -> ProcessStates:
    """Return the states of so many processes; those that there are without a count."""
    with (Path(os.environ[SHARED_FOLDER]) / "states").open("w+b" if count else "r+b") as file:
        if count:
            file.truncate(8 * count)
        cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("I")
    return ProcessStates(cells[: len(cells) // 2], cells[len(cells) // 2 :])


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

    def __init__(self, shared: ProcessStates, slot: int, count: int) -> None:
        self.count = count
        self._states, self._connections = shared
        self._slot = slot
        self.replaces_another = ProcessState.READY in self._states

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""
        self._states[self._slot] = ProcessState.READY if ready else ProcessState.LOADING

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return ProcessState.LOADING not in self._states

    def has_connections(self, count: int) -> None:
        """Tell the others how many connections this process has."""
        self._connections[self._slot] = count

    def another_has_fewer_connections(self) -> bool:
        """Return whether a process that accepts connections has fewer than this one."""
        own = self._connections[self._slot]
        pairs = zip(self._states, self._connections, strict=True)
        return any(state != ProcessState.NOT_ACCEPTING and count < own for state, count in pairs)

    def leaves(self) -> None:
        """Tell the others that this process ends, and leaves new connections to them."""
        self._states[self._slot] = ProcessState.NOT_ACCEPTING

"""What the processes of a gateway tell each other: whether they can rescore."""

from ctypes import Array, c_ubyte
from enum import IntEnum


class ProcessState(IntEnum):
    """The state of a gateway's process."""

    NOT_ACCEPTING = 0
    LOADING = 1
    READY = 2


ProcessStates = Array[c_ubyte]
"""The state of each process, in memory that all of them share."""


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
    """One of several processes.

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

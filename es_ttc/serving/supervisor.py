"""The first process of `es-ttc serve`: it keeps running the workers, which answer requests.

Each worker answers the requests of the connections that it has accepted from the one listening socket, which stays open
whatever becomes of a worker. Workers share readiness and metrics, and divide the cache of features. One that has died
is started again; SIGHUP replaces all of them, one after the other, and each new one accepts connections before its
predecessor stops.

This process takes the place of the one that has read the settings, and imports the standard library alone: with what
the command line imports it would hold ten times the memory.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from es_ttc.serving.process import DRAIN_SECONDS, SHARED_FOLDER, ProcessState, open_states, refuse_further

LAUNCH = "es_ttc.serving.launch"
"""The module that is run to read the settings again."""
WORKER = "es_ttc.serving.worker"
"""The module that is run as a worker."""
_TICK_SECONDS = 0.2
_START_SECONDS = 300  # a first start compiles loops
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module; modules in the working folder are not imported."""
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


class Worker:
    """A started worker, and the place of its state."""

    def __init__(self, command: Sequence[str], launch: bytes, listening: int, slot: int) -> None:
        self.launch = launch
        self.slot = slot
        self.since = time.monotonic()
        # Its standard input ends with this process, however that ends.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening])  # noqa: S603 - our own
        if self.process.stdin is not None:
            with suppress(OSError):  # it has ended already
                self.process.stdin.write(launch)
                self.process.stdin.flush()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None


class Supervisor:
    """Keeps workers running.

    Args:
        listening: The socket, in which clients' connections wait.
        launch: What :func:`es_ttc.serving.launch.packed` returned.
        count: Number of workers.
    """

    def __init__(self, listening: socket.socket, launch: bytes, count: int) -> None:
        self._listening = listening
        self._launch = self._next_launch = launch
        self._states, self._connections = open_states(2 * count + 2)  # while they are replaced
        self._workers: list[Worker] = []
        self._leaving: list[Worker] = []
        self._replaces: list[Worker] = []
        self._successor: Worker | None = None
        self._started = self._stops = self._hung_up = False
        self._pause = _PAUSE_SECONDS
        self._next_start = 0.0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._replace)
        for _ in range(count):
            self._workers.append(self._start(launch))

    def run(self) -> int:
        """Keep them running until a signal says stop; return the exit status."""
        try:
            while not self._stops:
                time.sleep(_TICK_SECONDS)
                for worker in self._all:
                    if not worker.runs:
                        self._states[worker.slot] = ProcessState.NOT_ACCEPTING
                self._started = self._started or any(map(self._accepts, self._workers))
                self._leaving = [worker for worker in self._leaving if worker.runs]
                if not self._restart_ended():
                    return 1
                if self._hung_up:
                    self._begin_to_replace()
                self._go_on_replacing()
        finally:
            refuse_further(self._listening)
            self._listening.close()  # the last worker closes it for all, when it has accepted what waits there
            _end(self._all)
        return 0

    def _start(self, launch: bytes) -> Worker:
        taken = {worker.slot for worker in self._all}
        slot = next(number for number in range(len(self._states)) if number not in taken)
        self._states[slot] = ProcessState.NOT_ACCEPTING
        self._connections[slot] = 0
        listening = self._listening.fileno()
        return Worker(python(WORKER, listening, slot), launch, listening, slot)

    def _accepts(self, worker: Worker) -> bool:
        return self._states[worker.slot] != ProcessState.NOT_ACCEPTING

    @property
    def _all(self) -> list[Worker]:
        successor = [] if self._successor is None else [self._successor]
        return [*self._workers, *successor, *self._leaving]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops = True

    def _replace(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def _begin_to_replace(self) -> None:
        """Read the settings again; if they are wrong, the process that reads them says so."""
        self._hung_up = False
        command = python(LAUNCH)
        read = subprocess.run(command, input=self._launch, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own
        if read.returncode == 0:
            self._next_launch = read.stdout
            self._replaces = list(self._workers)

    def _restart_ended(self) -> bool:
        """Start a worker for each one that has ended; later if they end again and again.

        Returns:
            False if none has ever started.
        """
        ended = [worker for worker in self._workers if not worker.runs]
        now = time.monotonic()
        if not ended or self._stops or (self._started and now < self._next_start):
            return True
        if not self._started:
            os.write(2, b"es-ttc: the gateway could not start: its log says why\n")
            return False
        for worker in ended:
            _log("error", "worker ended", process=worker.process.pid, status=worker.process.returncode)
            lasted = now - worker.since > _MAX_PAUSE_SECONDS
            self._pause = _PAUSE_SECONDS if lasted else min(_MAX_PAUSE_SECONDS, 2 * self._pause)
            self._workers[self._workers.index(worker)] = self._start(self._launch)
        self._next_start = now + self._pause
        return True

    def _go_on_replacing(self) -> None:
        """Replace workers one after the other, each when its successor accepts connections."""
        if self._successor is not None:
            self._settle(self._successor)
        elif self._replaces and len(self._leaving) < len(self._workers):
            if self._replaces[0] in self._workers:
                self._successor = self._start(self._next_launch)
            else:  # it has ended meanwhile, and was started again
                self._replaces.pop(0)

    def _settle(self, successor: Worker) -> None:
        late = time.monotonic() - successor.since > _START_SECONDS
        if late or not successor.runs:
            _log("error", "new worker did not start; the present ones stay", process=successor.process.pid)
            self._replaces.clear()
            self._leaving.append(successor)
            successor.process.terminate()
            self._successor = None
        elif self._accepts(successor):
            self._launch = successor.launch  # a worker can start with it
            predecessor = self._replaces.pop(0)
            if predecessor in self._workers:
                self._workers[self._workers.index(predecessor)] = successor
                self._leaving.append(predecessor)
                predecessor.process.terminate()
                _log("info", "worker replaced", process=predecessor.process.pid, by=successor.process.pid)
            else:
                self._leaving.append(successor)
                successor.process.terminate()
            self._successor = None


def _end(workers: Sequence[Worker]) -> None:
    """Let workers answer their requests and end."""
    for worker in workers:
        worker.process.terminate()
    until = time.monotonic() + DRAIN_SECONDS + 5
    for worker in workers:
        try:
            worker.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()


def _log(level: str, event: str, **values: object) -> None:
    """Write a line as :mod:`es_ttc.serving.logs` writes it to a file."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {**values, "event": event, "level": level, "logger": "es_ttc.gateway", "timestamp": now}
    os.write(2, f"{json.dumps(line)}\n".encode())


def main() -> None:
    """Run until SIGINT or SIGTERM, with the file descriptors of the socket and of the launch, and a number."""
    listening, launch, count = map(int, sys.argv[1:])
    try:
        with os.fdopen(launch, "rb") as packed:
            supervisor = Supervisor(socket.socket(fileno=listening), packed.read(), count)
        sys.exit(supervisor.run())
    finally:
        shutil.rmtree(os.environ[SHARED_FOLDER], ignore_errors=True)


if __name__ == "__main__":
    main()

"""Keeps the worker processes of a gateway running: starts them, starts them again, replaces them."""

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Protocol

from pydantic import ValidationError

from es_ttc.errors import ConfigurationError, EsTtcError
from es_ttc.serving.logs import log
from es_ttc.serving.server import DRAIN_SECONDS
from es_ttc.settings import wrong_setting

_TICK_SECONDS = 0.2
_START_SECONDS = 300  # a first start compiles loops
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class Worker:
    """A started process."""

    process: SpawnProcess
    said: Connection
    since: float = field(default_factory=time.monotonic)
    accepts: bool = False

    def listen(self) -> None:
        """Learn whether it accepts connections."""
        with suppress(EOFError, OSError):
            if not self.accepts and self.said.poll():
                self.said.recv_bytes()
                self.accepts = True


class Starter(Protocol):
    """Starts workers."""

    def start(self) -> Worker:
        """Start a worker."""
        ...

    def stop(self) -> None:
        """Give up the listening socket: the last worker closes it, when it has accepted what waits there."""
        ...

    def refresh(self) -> None:
        """Read the settings of the workers that are started from now on.

        Raises:
            EsTtcError: One is wrong.
            ValidationError: One is wrong.
        """
        ...


class Supervisor:
    """Keeps processes running."""

    def __init__(self, starter: Starter, count: int) -> None:
        self._starter = starter
        self._workers = [starter.start() for _ in range(count)]
        self._leaving: list[Worker] = []
        self._stops = False
        self._hung_up = False
        self._replaces: list[Worker] = []
        self._successor: Worker | None = None
        self._pause = _PAUSE_SECONDS
        self._next_start = 0.0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._replace)

    def run(self) -> None:
        """Keep them running until a signal says stop.

        Raises:
            ConfigurationError: One ended before any accepted connections.
        """
        try:
            while not self._stops:
                wait([worker.process.sentinel for worker in self._all], timeout=_TICK_SECONDS)
                for worker in self._all:
                    worker.listen()
                self._leaving = [worker for worker in self._leaving if worker.process.is_alive()]
                self._restart_ended()
                if self._hung_up:
                    self._begin_to_replace()
                self._go_on_replacing()
        finally:
            self._starter.stop()
            _end(self._all)

    @property
    def _all(self) -> list[Worker]:
        successor = [] if self._successor is None else [self._successor]
        return [*self._workers, *successor, *self._leaving]

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stops = True

    def _replace(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def _begin_to_replace(self) -> None:
        self._hung_up = False
        try:
            self._starter.refresh()
        except (EsTtcError, ValidationError) as error:
            problem = wrong_setting(error) if isinstance(error, ValidationError) else str(error)
            log.error("settings are wrong; nothing is replaced", problem=problem)
        else:
            self._replaces = list(self._workers)

    def _restart_ended(self) -> None:
        """Start a process for each one that has ended; later if they end again and again."""
        ended = [worker for worker in self._workers if not worker.process.is_alive()]
        if not ended or self._stops:
            return
        if not any(worker.accepts for worker in self._workers):
            raise ConfigurationError("the gateway could not start: its log says why")
        now = time.monotonic()
        if now < self._next_start:
            return
        for worker in ended:
            log.error("worker ended", process=worker.process.pid, status=worker.process.exitcode)
            lasted = now - worker.since > _MAX_PAUSE_SECONDS
            self._pause = _PAUSE_SECONDS if lasted else min(_MAX_PAUSE_SECONDS, 2 * self._pause)
            self._workers[self._workers.index(worker)] = self._starter.start()
        self._next_start = now + self._pause

    def _go_on_replacing(self) -> None:
        """Replace processes one after the other, each when its successor accepts connections."""
        if self._successor is not None:
            self._settle(self._successor)
        elif self._replaces and len(self._leaving) < len(self._workers):
            if self._replaces[0] in self._workers:
                self._successor = self._starter.start()
            else:  # it has ended meanwhile, and was started again
                self._replaces.pop(0)

    def _settle(self, successor: Worker) -> None:
        late = time.monotonic() - successor.since > _START_SECONDS
        if late or not successor.process.is_alive():
            log.error("new worker did not start; the present ones stay", process=successor.process.pid)
            self._replaces.clear()
            self._leaving.append(successor)
            successor.process.terminate()
            self._successor = None
        elif successor.accepts:
            predecessor = self._replaces.pop(0)
            if predecessor in self._workers:
                self._workers[self._workers.index(predecessor)] = successor
                self._leaving.append(predecessor)
                predecessor.process.terminate()
                log.info("worker replaced", process=predecessor.process.pid, by=successor.process.pid)
            else:
                self._leaving.append(successor)
                successor.process.terminate()
            self._successor = None


def _end(workers: Sequence[Worker]) -> None:
    """Let processes answer their requests and end."""
    for worker in workers:
        worker.process.terminate()
    until = time.monotonic() + DRAIN_SECONDS + 5
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()

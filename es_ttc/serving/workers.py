"""Several processes that answer requests at one address.

Each answers the requests of the connections that it has accepted from the one listening socket, which stays open
whatever becomes of a process. They share readiness and metrics, and divide the cache of features. A process that has
died is started again; SIGHUP replaces all of them, one after the other, and each new one accepts connections before its
predecessor stops.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from pydantic import ValidationError
from pydantic_settings import SettingsError

from es_ttc.common.parent_process import end_with_parent
from es_ttc.errors import ConfigurationError, EsTtcError
from es_ttc.serving.app import FurtherRoutes, create_app
from es_ttc.serving.http.raw_request import MAX_BODY
from es_ttc.serving.logs import configure_logs, log
from es_ttc.serving.metrics import SHARED_FOLDER
from es_ttc.serving.process import ProcessState, ProcessStates, WorkerProcess
from es_ttc.serving.server import DRAIN_SECONDS, refuse_further, server_of
from es_ttc.settings import GatewaySettings, wrong_setting

_FIXED = ("host", "port", "workers")
_SPAWN = multiprocessing.get_context("spawn")
_TICK_SECONDS = 0.2
_START_SECONDS = 300  # a first start compiles loops
_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0


def serve_with_workers(
    settings: GatewaySettings,
    listening: socket.socket,
    read_again: Callable[[], GatewaySettings],
    further: FurtherRoutes | None = None,
) -> None:
    """Answer requests with several processes until SIGINT or SIGTERM, then wait for running requests for up to 30 s.

    Args:
        settings: The settings.
        listening: The socket.
        read_again: Returns the settings for the processes that replace others at SIGHUP. Address and number of
            processes stay as they are.
        further: Makes further routes in each process; see :func:`~es_ttc.serving.app.create_app`.
    """
    folder = tempfile.mkdtemp(prefix="es-ttc-metrics-")
    os.environ[SHARED_FOLDER] = folder  # read by prometheus-client when a worker imports it
    try:
        Supervisor(settings, listening, read_again, further).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker_settings(settings: GatewaySettings) -> GatewaySettings:
    """Return the settings of one of several processes: its part of all limits and budgets."""
    count = settings.workers
    parts = {
        "max_connections": max(1, settings.max_connections // count),
        "max_concurrent_requests": max(1, settings.max_concurrent_requests // count),
        "max_buffered_mb": max(MAX_BODY // 2**20, settings.max_buffered_mb // count),
        "feature_cache_mb": settings.feature_cache_mb // count,
        "on_demand_share": settings.on_demand_share / count,
        "on_demand_queue": max(1, settings.on_demand_queue // count),
    }
    return settings.model_copy(update=parts)


@dataclass(slots=True)
class Worker:
    """A started process, where it tells that it accepts connections, and the place of its state."""

    process: SpawnProcess
    told: Connection
    slot: int
    since: float = field(default_factory=time.monotonic)
    accepts: bool = False

    def listen(self) -> None:
        """Learn whether it accepts connections."""
        with suppress(EOFError, OSError):
            if not self.accepts and self.told.poll():
                self.told.recv_bytes()
                self.accepts = True


class Supervisor:
    """Keeps processes running."""

    def __init__(
        self,
        settings: GatewaySettings,
        listening: socket.socket,
        read_again: Callable[[], GatewaySettings],
        further: FurtherRoutes | None,
    ) -> None:
        self._settings = settings
        self._states: ProcessStates = _SPAWN.RawArray("B", 2 * settings.workers + 2)  # while they are replaced
        self._listening = listening
        self._read_again = read_again
        self._further = further
        self._workers: list[Worker] = []
        self._leaving: list[Worker] = []
        self._stops = False
        self._hung_up = False
        self._replaces: list[Worker] = []
        self._successor: Worker | None = None
        for _ in range(settings.workers):
            self._workers.append(self._start())
        self._pause = _PAUSE_SECONDS
        self._next_start = 0.0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._replace)

    def run(self) -> None:
        """Keep them running until a signal says stop."""
        try:
            while not self._stops:
                wait([worker.process.sentinel for worker in self._all], timeout=_TICK_SECONDS)
                for worker in self._all:
                    worker.listen()
                    if not worker.process.is_alive():
                        self._states[worker.slot] = ProcessState.NOT_ACCEPTING
                self._leaving = [worker for worker in self._leaving if worker.process.is_alive()]
                self._restart_ended()
                if self._hung_up:
                    self._begin_to_replace()
                self._go_on_replacing()
        finally:
            refuse_further(self._listening)
            self._listening.close()  # the last worker closes it for all, when it has accepted what waits there
            _end(self._all)

    def _start(self) -> Worker:
        told, tell = _SPAWN.Pipe(duplex=False)
        taken = {worker.slot for worker in self._all}
        slot = next(number for number in range(len(self._states)) if number not in taken)
        self._states[slot] = ProcessState.NOT_ACCEPTING
        arguments = (self._settings, self._states, slot, self._listening, tell, self._further)
        process = _SPAWN.Process(target=_work, args=arguments, name="es-ttc-gateway")
        process.start()
        tell.close()
        return Worker(process, told, slot)

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
            fixed = {name: getattr(self._settings, name) for name in _FIXED}
            self._settings = self._read_again().model_copy(update=fixed)
        except (EsTtcError, SettingsError, ValidationError) as error:
            problem = str(error) if isinstance(error, EsTtcError) else wrong_setting(error)
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
            self._workers[self._workers.index(worker)] = self._start()
        self._next_start = now + self._pause

    def _go_on_replacing(self) -> None:
        """Replace processes one after the other, each when its successor accepts connections."""
        if self._successor is not None:
            self._settle(self._successor)
        elif self._replaces and len(self._leaving) < len(self._workers):
            if self._replaces[0] in self._workers:
                self._successor = self._start()
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


def _work(
    settings: GatewaySettings,
    states: ProcessStates,
    slot: int,
    listening: socket.socket,
    tell: Connection,
    further: FurtherRoutes | None,
) -> None:
    """Answer requests; this is the main function of a worker."""
    configure_logs()
    end_with_parent()
    own = worker_settings(settings)
    process = WorkerProcess(states, slot, settings.workers)
    app = create_app(own, wait_for_encoder=process.replaces_another, process=process, further=further)
    server = server_of(app, own, started=lambda: tell.send_bytes(b"accepts"))
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it has ended for
        server.run(sockets=[listening])

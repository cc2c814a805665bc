"""Several processes that answer requests at one address.

Each answers the requests of the connections that it has accepted from the one listening socket, which stays open
whatever becomes of a process. They share the cache of features, readiness and metrics. A process that has died is
started again; SIGHUP replaces all of them, one after the other, and each new one accepts connections before its
predecessor stops.
"""

import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from multiprocessing.connection import Connection

from es_ttc.common.parent_process import end_with_parent
from es_ttc.common.shared_log import SharedLog, make_shared_log
from es_ttc.serving.app import FurtherRoutes, create_app
from es_ttc.serving.features.cache import (
    FeatureCache,
    PrivateFeatureCache,
    SharedFeatureCache,
    private_share,
    shared_share,
)
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.metrics import SHARED_FOLDER
from es_ttc.serving.server import server_of
from es_ttc.serving.supervisor import Supervisor, Worker
from es_ttc.settings import GatewaySettings

_FIXED = ("host", "port", "workers", "feature_cache_mb")
_SPAWN = multiprocessing.get_context("spawn")


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
        read_again: Returns the settings for the processes that replace others at SIGHUP. Address, number of processes
            and size of the cache stay as they are.
        further: Makes further routes in each process; see :func:`~es_ttc.serving.app.create_app`.

    Raises:
        ConfigurationError: A process ended before it accepted connections.
    """
    folder = tempfile.mkdtemp(prefix="es-ttc-metrics-")
    os.environ[SHARED_FOLDER] = folder  # read by prometheus-client when a worker imports it
    memory = memory_to_share(settings, settings.workers)
    try:
        Supervisor(_Starter(settings, memory, listening, read_again, further), settings.workers).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share_of(settings: GatewaySettings) -> GatewaySettings:
    """Return the settings of one of several processes: its part of the limits of connections, requests and memory."""
    count = settings.workers
    parts = {
        "max_connections": max(1, settings.max_connections // count),
        "max_concurrent_requests": max(1, settings.max_concurrent_requests // count),
        "max_bodies_mb": max(settings.max_body_mb, settings.max_bodies_mb // count),
        "scoring_threads": max(1, settings.scoring_threads // count),
        "programs_processes": settings.programs_processes // count,
    }
    return settings.model_copy(update=parts)


class _State(IntEnum):
    STARTING = 0  # no connection is accepted yet
    LOADING = 1
    READY = 2


class WorkerProcess:
    """One of several processes."""

    def __init__(self, log: SharedLog, count: int) -> None:
        self.count = count
        self._log = log
        log.join()

    def feature_cache(self, settings: GatewaySettings) -> FeatureCache:
        """Return the shared cache."""
        capacity = settings.feature_cache_mb * 2**20
        if not capacity:
            return PrivateFeatureCache(0)
        return SharedFeatureCache(self._log, private_share(capacity, self.count))

    @property
    def replaces_another(self) -> bool:
        """Whether other processes can rescore already, so that this one need not accept connections before it can."""
        return _State.READY in self._log.flags()

    def accepts(self, *, ready: bool) -> None:
        """Tell the others that this process accepts connections, and whether it can rescore."""
        self._log.set_flag(_State.READY if ready else _State.LOADING)

    def all_ready(self) -> bool:
        """Return whether all processes that accept connections can rescore."""
        return _State.LOADING not in self._log.flags()


def memory_to_share(settings: GatewaySettings, count: int) -> SharedLog:
    """Return the memory that processes share; twice as many may have it while they are replaced."""
    return make_shared_log(shared_share(settings.feature_cache_mb * 2**20), processes=2 * count)


class _Starter:
    """Starts processes."""

    def __init__(
        self,
        settings: GatewaySettings,
        memory: SharedLog,
        listening: socket.socket,
        read_again: Callable[[], GatewaySettings],
        further: FurtherRoutes | None,
    ) -> None:
        self._settings = settings
        self._memory = memory
        self._listening = listening
        self._read_again = read_again
        self._further = further

    def stop(self) -> None:
        """Close this process's listening socket."""
        self._listening.close()

    def refresh(self) -> None:
        """Read the settings again.

        Raises:
            EsTtcError: One is wrong.
        """
        present = self._settings
        fixed = {name: getattr(present, name) for name in _FIXED}
        self._settings = self._read_again().model_copy(update=fixed)

    def start(self) -> Worker:
        """Start a process."""
        said, say = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(
            target=_work,
            args=(self._settings, self._memory, self._listening, say, self._further),
            name="es-ttc-gateway",
        )
        process.start()
        say.close()
        return Worker(process, said)


def _work(
    settings: GatewaySettings,
    memory: SharedLog,
    listening: socket.socket,
    say: Connection,
    further: FurtherRoutes | None,
) -> None:
    """Answer requests; this is the main function of a worker."""
    configure_logs(settings.log_format)
    end_with_parent()
    own = share_of(settings)
    process = WorkerProcess(memory, settings.workers)
    app = create_app(own, wait_for_encoder=process.replaces_another, process=process, further=further)
    server = server_of(app, own, started=lambda: say.send_bytes(b"accepts"))
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again that it has ended for
        server.run(sockets=[listening])

"""Accepting connections at an address that several processes share, so that each of them has about as many."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sized
from contextlib import suppress

from es_ttc.serving.logs import log
from es_ttc.serving.process import WorkerProcess

_LEAVE_SECONDS = 0.005
"""How long a new connection is left to a process that has fewer: to wake up, if it is idle."""
_PAUSE_SECONDS = 1.0
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class SharedListener:
    """Accepts the connections of a listening socket, one at a time.

    The event loop's own server accepts all that wait: one of several idle processes would get a whole pool of
    connections, and keep it.

    Args:
        listening: The socket.
        process: This process.
        connections: The open connections of this process.
        make_protocol: Makes a connection's protocol.
        context: The certificate of new connections, which may be replaced; None for plain HTTP.
    """

    def __init__(
        self,
        listening: socket.socket,
        process: WorkerProcess,
        connections: Sized,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listening = listening
        self._process = process
        self._connections = connections
        self._make_protocol = make_protocol
        self._context = context
        self._connecting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def count(self) -> None:
        """Tell the other processes how many connections this one has."""
        self._process.has_connections(len(self._connections) + len(self._connecting))

    def close(self) -> None:
        """Accept no further connection."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        """Do nothing: the server waits for its connections."""

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._on_connection)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, then)

    def _on_connection(self) -> None:
        self.count()
        if self._process.another_has_fewer_connections():
            self._wait(_LEAVE_SECONDS, self._accept_and_resume)
        else:
            self._accept()

    def _accept_and_resume(self) -> None:
        self._resume()
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process has accepted it
            return
        except OSError as error:
            if error.errno not in _NO_RESOURCES:
                raise
            log.error("no connection can be accepted", problem=str(error))
            self._wait(_PAUSE_SECONDS, self._resume)
            return
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        self.count()

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the client has gone, or its handshake failed
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._context)

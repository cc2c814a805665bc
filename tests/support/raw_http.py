"""HTTP as bytes, for requests that no client library sends; and a server that nothing may ever reach."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


def connect(url: str, timeout: float = 20.0) -> socket.socket:
    """Open a connection to a server."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=timeout)


def exchange(url: str, data: bytes, timeout: float = 20.0) -> bytes:
    """Send bytes and return all that comes until the server closes, or until nothing comes any more."""
    with connect(url, timeout) as connection:
        connection.sendall(data)
        return receive(connection)


def receive(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes, or until nothing comes any more."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except (TimeoutError, ConnectionResetError):
        pass
    return received


def status_of(answer: bytes) -> int:
    """Return the status of an answer; 0 where there is none."""
    line = answer.partition(b"\r\n")[0].split(b" ")
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes a connection within so many seconds."""
    connection.settimeout(seconds)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            if not connection.recv(65536):
                return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        pass
    return False


@dataclass
class Trap:
    """A server that nothing may reach.

    Attributes:
        port: Its port on the loopback address.
        reached: What came all the same.
    """

    port: int
    reached: list[bytes] = field(default_factory=list)


@contextmanager
def trap() -> Iterator[Trap]:
    """Run a server that answers as a made-up Elasticsearch, and keeps what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        state = Trap(listening.getsockname()[1])
        listening.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(2)
                    try:
                        state.reached.append(connection.recv(65536))
                        connection.sendall(
                            b"HTTP/1.1 200 OK\r\nX-Elastic-Product: Elasticsearch\r\ncontent-length: 0\r\n\r\n"
                        )
                    except OSError:
                        state.reached.append(b"")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            stop.set()
            thread.join(5)

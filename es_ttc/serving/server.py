"""The gateway as a server: in the foreground for the command line, in a thread for tests, demo and evaluation."""

import asyncio
import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from es_ttc.errors import ConfigurationError
from es_ttc.serving.app import FurtherRoutes, create_app
from es_ttc.serving.features.encoding import Loader
from es_ttc.serving.http.protocol import LimitedProtocol, http_limits, limited_protocol
from es_ttc.serving.http.tls import ServerCertificate, server_certificate
from es_ttc.settings import GatewaySettings

DRAIN_SECONDS = 30
_BACKLOG = 2048
_BACKLOG_SECONDS = 1.0
_TICKS_A_LOOK = 10  # uvicorn's ticks are a tenth of a second


def bind(settings: GatewaySettings) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigurationError: The port is in use, or the address is not one of this machine.
    """
    where = f"[{settings.host}:{settings.port}]"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)  # asyncio turns Nagle's delay off where TCP is named
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except socket.gaierror as error:
        raise ConfigurationError(f"[host] {where} is no address of this machine: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {settings.port} on [{settings.host}] is taken by another program: choose one with --port"
            ) from error
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}") from error
    return listening


def address_of(listening: socket.socket, *, tls: bool = False) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http{'s' * tls}://{f'[{host}]' if ':' in host else host}:{port}"


def serve(settings: GatewaySettings, listening: socket.socket, further: FurtherRoutes | None = None) -> None:
    """Answer requests until SIGINT or SIGTERM, then wait for running requests for up to 30 s."""
    server_of(create_app(settings, further=further), settings).run(sockets=[listening])


@contextmanager
def running_gateway(
    settings: GatewaySettings, *, load: Loader | None = None, further: FurtherRoutes | None = None
) -> Iterator[str]:
    """Run a gateway in a thread and yield its URL; its encoder is loaded, if that is possible.

    Raises:
        ConfigurationError: It cannot start.
    """
    app = create_app(settings, load=load, wait_for_encoder=True, further=further)
    with bind(settings) as listening:
        ready = threading.Event()
        server = server_of(app, settings, ready.set)
        thread = threading.Thread(target=server.run, args=([listening],), name="es-ttc-gateway", daemon=True)
        thread.start()
        try:
            while not ready.wait(0.1):
                if not thread.is_alive():
                    raise ConfigurationError("the gateway could not start: its log says why")
            yield address_of(listening, tls=settings.tls_cert is not None)
        finally:
            server.should_exit = True
            thread.join(DRAIN_SECONDS + 5)


class _Server(uvicorn.Server):
    """A server that says when it accepts requests."""

    def __init__(
        self, config: uvicorn.Config, certificate: ServerCertificate | None, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            for listening in sockets or ():
                listening.listen(_BACKLOG)
            self._say_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait in the backlog, answer all requests that have arrived, and end."""
        cast("type[LimitedProtocol]", self.config.http_protocol_class).leaving = True
        waiting, until = select.poll(), time.monotonic() + _BACKLOG_SECONDS
        for listening in sockets or ():
            waiting.register(listening, select.POLLIN)
        while waiting.poll(0) and time.monotonic() < until:  # noqa: ASYNC110 - the event loop accepts them meanwhile
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Look for a new certificate from time to time."""
        if self._certificate is not None and counter % _TICKS_A_LOOK == 0:
            self._certificate.refresh()
        return await super().on_tick(counter)


def server_of(app: ASGIApp, settings: GatewaySettings, started: Callable[[], None] = lambda: None) -> _Server:
    """Return a server with the limits from the settings; it is not started.

    Raises:
        ConfigurationError: The certificate cannot be used.
    """
    certificate = server_certificate(settings)
    logging.getLogger("uvicorn.access").disabled = True  # its lines contain query strings
    logging.getLogger("uvicorn.error").addFilter(_not_of_a_request)
    return _Server(
        uvicorn.Config(
            app,
            http=limited_protocol(http_limits(settings)),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,  # responses have the engine's own headers
            date_header=False,
            proxy_headers=False,
            backlog=1,  # connections that one process accepts at a time: another one may be idle
            timeout_keep_alive=settings.idle_timeout,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        ),
        certificate,
        started,
    )


def _not_of_a_request(record: logging.LogRecord) -> bool:
    """Return False for log lines that any client could cause in large numbers."""
    return not record.getMessage().startswith(("Invalid HTTP request", "Unsupported upgrade", "No supported WebSocket"))

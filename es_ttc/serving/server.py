"""The gateway as a server: in the foreground for the command line, in a thread for tests, demo and evaluation.

Its TLS certificate may be replaced while it runs.
"""

import asyncio
import errno
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from es_ttc.errors import ConfigurationError
from es_ttc.serving.accept import SharedListener
from es_ttc.serving.app import FurtherRoutes, create_app
from es_ttc.serving.features.encoding import Loader
from es_ttc.serving.http.protocol import LimitedProtocol, limited_protocol
from es_ttc.serving.logs import log
from es_ttc.serving.process import DRAIN_SECONDS, WorkerProcess, refuse_further
from es_ttc.settings import GatewaySettings

_BACKLOG = 2048
_BACKLOG_SECONDS = 1.0
_CERTIFICATE_SECONDS = 1.0


def bind(settings: GatewaySettings) -> socket.socket:
    """Return a listening socket."""
    where = f"[{settings.host}:{settings.port}]"
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = addresses[0]
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
    """Run a gateway in a thread and yield its URL; its encoder is loaded, if that is possible."""
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


class ServerCertificate:
    """The certificate of the address, and the context of new connections."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._seen = [*map(_time, self._files)]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.context.load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"[tls_cert] {certificate} and [tls_key] {key} are no certificate and its key in PEM form: {error}"
            ) from error

    def refresh(self) -> None:
        """Read the files again if they have changed; keep the present certificate while they do not fit each other."""
        times = [*map(_time, self._files)]
        if times == self._seen:
            return
        certificate, key = self._files
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_refuse_password)
            self.context.load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            log.warning("new certificate cannot be used yet", problem=str(error))
        else:
            log.info("certificate replaced", certificate=str(certificate))
        self._seen = times


def server_certificate(settings: GatewaySettings) -> ServerCertificate | None:
    """Return the certificate in the settings, or None for plain HTTP."""
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        lacking = "tls_cert" if certificate is None else "tls_key"
        raise ConfigurationError(f"[{lacking}] is missing: TLS needs both the certificate and its key")
    return ServerCertificate(certificate, key)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; store it without a password, readable by the gateway alone")


def _time(file: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = file.stat()
        return status.st_mtime_ns, status.st_ino
    return None


class _Server(uvicorn.Server):
    """A server that says when it accepts requests."""

    def __init__(
        self,
        config: uvicorn.Config,
        certificate: ServerCertificate | None,
        started: Callable[[], None],
        process: WorkerProcess | None,
    ) -> None:
        super().__init__(config)
        self._process = process
        self._shared: list[SharedListener] = []
        self._certificate = certificate
        self._replacing: asyncio.Task[None] | None = None
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets if self._process is None else [])
        if self.started:
            if self._process is not None:
                process, connections = self._process, self.server_state.connections
                self._shared = [
                    SharedListener(listening, process, connections, self._make_protocol, self.config.ssl)
                    for listening in sockets or ()
                ]
                self.servers.extend(cast("list[asyncio.Server]", self._shared))
            if self._certificate is not None:
                self._replacing = asyncio.create_task(self._replace_certificate(self._certificate))
            self._say_started()

    def _make_protocol(self) -> asyncio.Protocol:
        make, state = cast("type[LimitedProtocol]", self.config.http_protocol_class), self.lifespan.state
        return make(config=self.config, server_state=self.server_state, app_state=state)

    async def on_tick(self, counter: int) -> bool:
        """Tell other processes the number of connections, some of which have been closed."""
        for listener in self._shared:
            listener.count()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the connections that wait in the backlog, answer all requests that have arrived, and end."""
        cast("type[LimitedProtocol]", self.config.http_protocol_class).leaving = True
        waiting, until = select.poll(), time.monotonic() + _BACKLOG_SECONDS
        if self._process is not None:
            self._process.leaves()
        for listening in sockets or ():
            if self._process is None:
                refuse_further(listening)
            waiting.register(listening, select.POLLIN)
        while waiting.poll(0) and time.monotonic() < until:  # noqa: ASYNC110 - the event loop accepts them meanwhile
            await asyncio.sleep(0)
        await super().shutdown(sockets)
        if self._replacing is not None:
            self._replacing.cancel()

    async def _replace_certificate(self, certificate: ServerCertificate) -> None:
        while True:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            certificate.refresh()


def server_of(
    app: ASGIApp,
    settings: GatewaySettings,
    started: Callable[[], None] = lambda: None,
    process: WorkerProcess | None = None,
) -> _Server:
    """Return a server with the limits from the settings; it is not started.

    Args:
        app: The application.
        settings: The settings.
        started: Called when it accepts connections.
        process: This process, if others accept connections at the same address; they go on while this one ends.
    """
    certificate = server_certificate(settings)
    logging.getLogger("uvicorn.access").disabled = True  # its lines contain query strings
    return _Server(
        uvicorn.Config(
            app,
            http=limited_protocol(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,  # responses have the engine's own headers
            date_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=settings.idle_timeout,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
        ),
        certificate,
        started,
        process,
    )

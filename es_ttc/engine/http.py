"""Plain HTTP to the engine, for requests that its clients cannot send: pass-through, CBOR, a caller's credentials."""

import asyncio
import base64
import errno
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from pydantic import SecretStr

from es_ttc.common.configuration_files import read_text
from es_ttc.engine.addresses import engine_addresses, engine_urls
from es_ttc.errors import ConfigurationError
from es_ttc.settings import EngineSettings, header_secret

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

TLS_ERRORS = (aiohttp.ClientSSLError, ssl.SSLError)

_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_KEEPALIVE_SECONDS = 30
_MAX_HEADER_BYTES = 64 * 1024
_CONNECT_SECONDS = 3.0
_PROMPT_SECONDS = 0.1  # in which a living node accepts a connection: giving up earlier says nothing about it
NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""Of a caller's request, which lasts as long as the caller waits; a connection for it has its own time."""
_MAY_BE_UNREAD = frozenset({400, 408, 413, 414, 417, 431})
"""Statuses of an engine that may not have read the whole request: the next request on that connection would wait."""


def service_headers(settings: EngineSettings) -> dict[str, str]:
    """Return the headers with the settings' own credentials; none if there are none."""
    api_key = _secret("api_key", settings.api_key, settings.api_key_file)
    if api_key is not None:
        return {"Authorization": f"ApiKey {api_key}"}
    token = _secret("bearer_token", settings.bearer_token, settings.bearer_token_file)
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    urls = engine_urls(settings.engine)
    url = next((url for url in urls if url.user is not None), urls[0])
    user = settings.username or url.user
    password = _secret("password", settings.password, settings.password_file) or url.password
    if user is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()}


GivenUp = Callable[[str, int | None], None]  # is told host and port of a node


class NodeConnector(aiohttp.TCPConnector):
    """Makes connections within a time of its own: a node that drops packets neither accepts nor refuses one."""

    def __init__(self, seconds: float, given_up: GivenUp | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds
        self._given_up = given_up

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's
    ) -> "ResponseHandler":
        started, key = time.monotonic(), req.connection_key
        try:
            async with asyncio.timeout(self._seconds):
                return await super()._create_connection(req, traces, timeout)
        except TimeoutError as error:
            late = OSError(errno.ETIMEDOUT, f"no connection within {self._seconds:g} seconds")
            raise aiohttp.ClientConnectorError(key, late) from error
        except asyncio.CancelledError:
            if self._given_up is not None and time.monotonic() - started >= _PROMPT_SECONDS:
                self._given_up(key.host, key.port)
            raise


def open_session(
    settings: EngineSettings, *, connections: int = 100, given_up: GivenUp | None = None
) -> aiohttp.ClientSession:
    """Open a session without defaults: no headers, no cookies, no decompression, no overall timeout."""
    connector = NodeConnector(
        connect_seconds(settings),
        given_up,
        limit=connections,
        keepalive_timeout=_KEEPALIVE_SECONDS,
        ssl=_tls(settings),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        timeout=NO_TIMEOUT,
        response_class=_EngineResponse,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
    )


def request_timeout(settings: EngineSettings) -> aiohttp.ClientTimeout:
    """Return the timeout of the gateway's own calls."""
    return aiohttp.ClientTimeout(total=settings.request_timeout, sock_connect=None)


def connect_seconds(settings: EngineSettings) -> float:
    """Return the timeout for connecting to a node: short if there is another node."""
    several = len(engine_addresses(settings)) > 1
    return min(settings.request_timeout, _CONNECT_SECONDS) if several else settings.request_timeout


def is_elasticsearch(headers: Mapping[str, str]) -> bool:
    """Return whether a response comes from Elasticsearch, which names itself in each one."""
    return "X-Elastic-Product" in headers


class _EngineResponse(aiohttp.ClientResponse):
    """A response whose connection is not used again if the engine may not have read the whole request.

    Netty rejects a request with a too long header by a 400, leaves the connection open and ignores the rest.
    """

    async def start(self, connection: aiohttp.connector.Connection) -> "_EngineResponse":
        """Read the response's status and headers."""
        protocol = connection.protocol
        await super().start(connection)
        if self.status in _MAY_BE_UNREAD and protocol is not None:
            protocol.force_close()  # once the body is read
            if connection.protocol is None:  # it has been, and the connection is back in the pool
                protocol.close()
        return self


def _secret(name: str, value: SecretStr | None, file: Path | None) -> str | None:
    """Return a secret from the setting or from its file, without a trailing line break."""
    if value is not None or file is None:
        return None if value is None else value.get_secret_value()
    try:
        secret = read_text(file).rstrip("\r\n")
        if name != "password":
            header_secret(SecretStr(secret))
    except (ConfigurationError, ValueError) as error:
        raise ConfigurationError(f"[{name}_file] cannot be read, got [{file}]: {error}") from error
    if not secret:
        raise ConfigurationError(f"[{name}_file] is empty, got [{file}]: write the {name} into it")
    return secret


def _tls(settings: EngineSettings) -> ssl.SSLContext | bool:
    if not settings.verify_certs:
        return False
    if settings.ca_certs is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_certs)
    except OSError as error:
        raise ConfigurationError(f"[ca_certs] cannot be read, got [{settings.ca_certs}]: {error}") from error

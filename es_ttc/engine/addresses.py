"""Addresses of the engine's nodes, parsed once from the settings: the only source of a request's scheme and host."""

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from yarl import URL

from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.settings import EngineSettings

_FIRST_REST_SECONDS = 1.0
_MAX_REST_SECONDS = 30.0
_TARGET = re.compile(rb"/[\x21-\x7e\x80-\xff]*")
_QUERY = re.compile(rb"[\x21-\x7e\x80-\xff]*")
_SEPARATOR = re.compile(r",(?=\s*https?://)")  # a password may contain a comma
_DOT_SEGMENT = re.compile(rb"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """One node of the engine."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        """The address without credentials and without a trailing slash."""
        return str(URL.build(scheme=self.scheme, host=self.host, port=self.port)).rstrip("/") + self.prefix

    def target(self, raw_path: bytes, query_string: bytes) -> URL:
        """Return the URL of a request to this node, built from its parts, so that it never leaves this host."""
        if not _TARGET.fullmatch(raw_path) or not _QUERY.fullmatch(query_string):
            raise InvalidRequest(
                f"the request target [{_excerpt(raw_path)}] is not a path: it must begin with [/] and hold neither "
                "spaces nor control characters"
            )
        if self.prefix and _DOT_SEGMENT.search(raw_path):
            raise InvalidRequest(f"the request target [{_excerpt(raw_path)}] holds a dot segment: write the path out")
        path = self.prefix + raw_path.decode("latin-1").replace("?", "%3F").replace("#", "%23")
        query = query_string.decode("latin-1").replace("#", "%23")
        return URL.build(
            scheme=self.scheme, host=self.host, port=self.port, path=path, query_string=query, encoded=True
        )


def engine_addresses(settings: EngineSettings) -> tuple[EngineAddress, ...]:
    """Return the addresses from the settings: URLs separated by commas, or a cloud id."""
    return tuple(dict.fromkeys(_address(url) for url in engine_urls(settings.engine)))


def engine_urls(engine: str) -> list[URL]:
    """Return the URLs of the setting ``engine``, with their credentials."""
    return [_url(part.strip()) for part in _SEPARATOR.split(engine)]


def without_credentials(url: str) -> str:
    """Return a URL, or several, without credentials, for messages."""
    return ", ".join(re.sub(r"^([^/]*//)?[^/]*@", r"\1", part.strip()) for part in _SEPARATOR.split(url))


def not_a_path(target: bytes) -> InvalidRequest:
    """Return the error for a request target that is not a path."""
    return InvalidRequest(f"the request target [{_excerpt(target)}] is not a path: it must begin with [/]")


class NodePool:
    """Chooses a node for each request: working nodes in turn, failed ones only if no other is left."""

    def __init__(self, addresses: Sequence[EngineAddress], clock: Callable[[], float] = time.monotonic) -> None:
        self.addresses = tuple(addresses)
        self._clock = clock
        self._turn = itertools.count()
        self._rests: dict[EngineAddress, tuple[float, float]] = {}  # until when, and for how long

    def order(self) -> list[EngineAddress]:
        """Return all nodes in the order in which a request tries them."""
        if len(self.addresses) == 1:
            return list(self.addresses)
        first = next(self._turn) % len(self.addresses)
        turned = self.addresses[first:] + self.addresses[:first]
        now = self._clock()
        return sorted(turned, key=lambda address: max(0.0, self._rests.get(address, (0.0, 0.0))[0] - now))

    def failed(self, address: EngineAddress) -> None:
        """Do not contact a node for a while, longer after each failure."""
        rest = min(_MAX_REST_SECONDS, 2 * self._rests.get(address, (0.0, _FIRST_REST_SECONDS / 2))[1])
        self._rests[address] = (self._clock() + rest, rest)

    def given_up(self, host: str, port: int | None) -> None:
        """Count a connection that was cancelled while its node did not answer as failed."""
        for address in self.addresses:
            if (address.host, address.port) == (host, port):
                self.failed(address)

    def answered(self, address: EngineAddress) -> None:
        """Use a node again."""
        self._rests.pop(address, None)


def _url(part: str) -> URL:
    if part and "://" not in part and ":" in part and "/" not in part and not part.rpartition(":")[2].isdigit():
        return _cloud_url(part)
    try:
        url = URL(part)
    except ValueError as error:
        raise ConfigurationError(f"[engine] is no URL, got [{without_credentials(part)}]: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"[engine] must be an http or https URL such as http://127.0.0.1:9200, several of them separated by "
            f"commas, or a cloud id, got [{without_credentials(part)}]"
        )
    return url


def _cloud_url(cloud_id: str) -> URL:
    from elastic_transport.client_utils import parse_cloud_id  # imports HTTP clients that are not used otherwise

    problem = ConfigurationError("[engine] is neither an http or https URL nor a cloud id: copy it whole")
    try:
        found = parse_cloud_id(cloud_id).es_address
    except (ValueError, TypeError) as error:
        raise problem from error
    if found is None:
        raise problem
    host, port = found
    return URL.build(scheme="https", host=host, port=port)


def _address(url: URL) -> EngineAddress:
    return EngineAddress(url.scheme, url.host or "", url.port or 80, url.raw_path.rstrip("/"))


def _excerpt(raw_path: bytes) -> str:
    return ascii(raw_path[:80].decode("latin-1"))[1:-1]

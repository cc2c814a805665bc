"""Which requests are let in: by the host that they name, the web page that they come from, and the admin token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import SecretStr

from es_ttc.errors import EsTtcError, NotAllowed, NotSignedIn
from es_ttc.serving.admin.endpoint import PREFIX, TOKEN_HEADER, carries
from es_ttc.serving.http.caller import RawHeaders, first_value

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # browsers leave them out of `Origin`
_ALWAYS = frozenset({"/_ttc/health", "/_ttc/ready"})  # probes name an address, not a host


class WrongHost(EsTtcError):
    """A request names a host that this gateway does not answer for."""

    status = 421
    type = "ttc_wrong_host_exception"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """The token of the endpoints below `/_ttc/`, and which of them do not ask for it."""

    token: SecretStr
    exempt: frozenset[str]  # paths that are answered without it, or check a token of their own
    open_below: tuple[str, ...] = ()  # beginnings of paths of files that hold nothing of anyone

    def admits(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return whether a request below `/_ttc/` is let in."""
        if path in self.exempt or path.startswith(self.open_below):
            return True
        return any(self._is_mine(name, value) for name, value in headers)

    def without(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return a request's headers without the token, so that the engine does not get it."""
        return [(name, value) for name, value in headers if not self._is_mine(name, value)]

    def _is_mine(self, name: bytes, value: bytes) -> bool:
        text = value.decode("latin-1")
        if name == b"authorization":
            return carries(text, self.token)
        return name == TOKEN_HEADER and carries(f"Bearer {text}", self.token)


class Admission:
    """Decides which requests are let in; without hosts every host is, without origins the gateway's own pages."""

    def __init__(self, hosts: Sequence[str], origins: Sequence[str], admin: AdminToken | None) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._admin = admin

    def refusal(self, path: str, headers: RawHeaders) -> EsTtcError | None:
        """Return why a request is not let in; None if it is."""
        return (None if path in _ALWAYS else self._wrong_name(path, headers)) or self._unsigned(path, headers)

    def without_token(self, path: str, headers: RawHeaders) -> RawHeaders:
        """Return a request's headers without the admin token, which the engine does not get; all at exempt paths."""
        return headers if self._admin is None or path in self._admin.exempt else self._admin.without(headers)

    def _wrong_name(self, path: str, headers: RawHeaders) -> EsTtcError | None:
        host, origin = first_value(headers, b"host"), first_value(headers, b"origin").lower()
        if self._hosts and not self._is_own(host):
            return WrongHost(f"this gateway does not answer for the host [{host}]: add it to [allowed_hosts]")
        own = (
            origin in self._origins if self._origins else not path.startswith(PREFIX) or _is_same(origin, host.lower())
        )
        if origin and not own:
            return NotAllowed(f"requests from pages of [{origin}] are not allowed: add it to [allowed_origins]")
        return None

    def _unsigned(self, path: str, headers: RawHeaders) -> EsTtcError | None:
        if self._admin is None or not path.startswith(PREFIX) or self._admin.admits(path, headers):
            return None
        return NotSignedIn(
            "the token is missing or wrong: send the gateway's admin_token as `Authorization: Bearer`, or as "
            "`x-ttc-token`"
        )

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return any(name == own or (own.startswith("*.") and name.endswith(own[1:])) for own in self._hosts)


def _is_same(origin: str, host: str) -> bool:
    """Return whether a page's origin and a `Host` header name the same host and port."""
    scheme, _, address = origin.partition("://")
    return address == host.removesuffix(_DEFAULT_PORTS.get(scheme, ""))

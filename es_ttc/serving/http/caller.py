"""Callers: the headers that are forwarded, and the request context of the gateway's own calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, unquote, urlencode

RawHeaders = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_FORWARDED = frozenset({b"host", b"expect"})
_OF_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type", b"accept", b"accept-encoding"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The request context of the gateway's own calls for a caller.

    Attributes:
        headers: The caller's headers.
        indices: The target, as in the request's path: so an alias's filter and rights hold for these calls too. Empty
            if the path names none (a point in time, the whole cluster).
        params: The URL parameters that decide how index names are resolved.
        pit: The point in time of the search, as in the body, or None: it fixes indices and their state for these calls
            too.
    """

    headers: RawHeaders
    indices: str = ""
    params: tuple[tuple[str, str], ...] = ()
    pit: Any = None

    def path(self, concrete: Sequence[str], api: str) -> bytes:
        """Return the path of a call.

        Concrete indices are used if the target is empty, or if it is several names that cover these indices by their
        own names: the others may lack the fields that a call needs. A single name may be an alias with a filter, and is
        kept.
        """
        named = self.indices if not self._names_itself(concrete) else ""
        return f"/{named or quote(','.join(concrete), safe=',:')}/{api}".encode()

    def _names_itself(self, concrete: Sequence[str]) -> bool:
        """Return whether a list or a pattern of the target covers indices by their own names, not by an alias."""
        parts = unquote(self.indices).split(",")
        several = len(parts) > 1 or "*" in parts[0]
        excludes = any(part.startswith("-") for part in parts)
        return several and not excludes and all(any(fnmatchcase(name, part) for part in parts) for name in concrete)

    def query_string(self, **params: str) -> bytes:
        """Return the parameters of a call."""
        return urlencode({"ignore_unavailable": "true", **dict(self.params), **params}).encode()


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the headers without hop-by-hop ones."""
    kept = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in kept if name == b"connection" for token in value.split(b",")}
    drop = _HOP_BY_HOP | named if named else _HOP_BY_HOP
    return [(name, value) for name, value in kept if name not in drop]


def forwarded(headers: RawHeaders) -> RawHeaders:
    """Return a caller's headers for the engine."""
    return [(name, value) for name, value in end_to_end(headers) if name not in _NOT_FORWARDED]


def callers(headers: RawHeaders) -> RawHeaders:
    """Return the headers that identify the caller (credentials, run-as, cookies, tracing), for own calls."""
    return [(name, value) for name, value in forwarded(headers) if name not in _OF_THE_BODY]


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""

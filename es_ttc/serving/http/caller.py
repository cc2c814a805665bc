"""Callers: their headers as they go on, and in whose name, of which indices, the gateway's own requests are made."""

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
_VENDOR = b"application/vnd.elasticsearch+"


@dataclass(frozen=True, slots=True)
class Caller:
    """In whose name, and through which door, calls of our own are made.

    Attributes:
        headers: The caller's headers.
        indices: What he searches, as it stands in his path: an alias's filter and rights then hold for us as well.
            Empty where his path names nothing (a point in time, the whole cluster).
        params: The URL parameters that say what such a name stands for.
        pit: The point in time that he searches, as it stands in his body, or None: it names indices and a state of
            them, and both hold for us as well.
    """

    headers: RawHeaders
    indices: str = ""
    params: tuple[tuple[str, str], ...] = ()
    pit: Any = None

    def path(self, concrete: Sequence[str], api: str) -> bytes:
        """Return the path of a call.

        Concrete indices are named where the caller named nothing, or several that cover these by their names: others
        of them may lack the fields that a call is about. A single name may be an alias with a filter, and stays.
        """
        named = self.indices if not self._names_itself(concrete) else ""
        return f"/{named or quote(','.join(concrete), safe=',:')}/{api}".encode()

    def _names_itself(self, concrete: Sequence[str]) -> bool:
        """Whether a list or a pattern of the caller's covers indices by their own names, not by an alias."""
        parts = unquote(self.indices).split(",")
        several = len(parts) > 1 or "*" in parts[0]
        excludes = any(part.startswith("-") for part in parts)
        return several and not excludes and all(any(fnmatchcase(name, part) for part in parts) for name in concrete)

    def query_string(self, **params: str) -> bytes:
        """Return the parameters of a call."""
        return urlencode({"ignore_unavailable": "true", **dict(self.params), **params}).encode()


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the headers that go past the next hop."""
    kept = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in kept if name == b"connection" for token in value.split(b",")}
    drop = _HOP_BY_HOP | named if named else _HOP_BY_HOP
    return [(name, value) for name, value in kept if name not in drop]


def forwarded(headers: RawHeaders) -> RawHeaders:
    """Return a caller's headers as they go to the engine."""
    return [(name, value) for name, value in end_to_end(headers) if name not in _NOT_FORWARDED]


def callers(headers: RawHeaders) -> RawHeaders:
    """Return what says who is calling (credentials, run-as, cookies, tracing) for a call of ours in his name."""
    return [(name, value) for name, value in forwarded(headers) if name not in _OF_THE_BODY]


def asks_vendor_type(headers: RawHeaders) -> bool:
    """Whether the caller is a client of Elasticsearch's that insists on its own media type and product header."""
    return any(name in (b"accept", b"content-type") and value.startswith(_VENDOR) for name, value in headers)


def plain_types(headers: RawHeaders) -> RawHeaders:
    """Replace Elasticsearch's own media types by the ones that OpenSearch knows."""
    return [(name, _plain(value) if name in (b"accept", b"content-type") else value) for name, value in headers]


def _plain(value: bytes) -> bytes:
    if not value.startswith(_VENDOR):
        return value
    subtype = value[len(_VENDOR) :].partition(b";")[0].strip()
    return b"application/" + subtype


class ClientDisconnected(Exception):
    """The client went away before its request was complete."""

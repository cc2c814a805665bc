"""Who asks: the headers that are forwarded, media types, and the context of calls in a caller's name.

A client of Elasticsearch 9 sends `application/vnd.elasticsearch+json;compatible-with=9`. OpenSearch accepts none of
these types, and Elasticsearch 8 only `compatible-with=8` and 7.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, unquote, urlencode

RawHeaders = list[tuple[bytes, bytes]]

PRODUCT_HEADER = (b"x-elastic-product", b"Elasticsearch")
"""Elasticsearch's clients require it of every response."""

_HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_NOT_FORWARDED = frozenset({b"host", b"expect"})
_OF_THE_BODY = frozenset({b"content-length", b"content-encoding", b"content-type", b"accept", b"accept-encoding"})
_NOT_RIGHTS = frozenset(
    {
        b"baggage", b"cf-ray", b"sentry-trace", b"traceparent", b"tracestate", b"user-agent", b"x-amzn-trace-id",
        b"x-b3-parentspanid", b"x-b3-spanid", b"x-b3-traceid", b"x-cloud-trace-context", b"x-correlation-id",
        b"x-elastic-client-meta", b"x-opaque-id", b"x-request-id",
    }
)  # fmt: skip
"""Headers that differ from request to request and give no rights."""
_VENDOR = b"application/vnd.elasticsearch+"
_MEDIA = (b"accept", b"content-type")
_COMPATIBLE_WITH = re.compile(rb"(compatible-with=)(\d+)")


@dataclass(frozen=True, slots=True)
class Caller:
    """The request context of the gateway's own calls for a caller.

    The target is as in the request's path, so an alias's filter and rights hold for these calls too. It is empty if the
    path names none (a point in time, the whole cluster). A point in time fixes indices and their state.
    """

    headers: RawHeaders
    indices: str = ""
    params: tuple[tuple[str, str], ...] = ()  # the URL parameters that decide how index names are resolved
    pit: Any = None  # as in the body of the search

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


def first_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return a header's first value, or an empty string."""
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the headers without hop-by-hop ones."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in lower if name == b"connection" for token in value.split(b",")}
    drop = _HOP_BY_HOP | named if named else _HOP_BY_HOP
    return [(name, value) for name, value in lower if name not in drop]


def forwarded(headers: RawHeaders) -> RawHeaders:
    """Return a caller's headers for the engine."""
    return [(name, value) for name, value in end_to_end(headers) if name not in _NOT_FORWARDED]


def callers(headers: RawHeaders) -> RawHeaders:
    """Return the headers that identify the caller (credentials, run-as, cookies, tracing), for own calls."""
    return [(name, value) for name, value in forwarded(headers) if name not in _OF_THE_BODY]


def asks_vendor_type(headers: RawHeaders) -> bool:
    """Return whether the client is one of Elasticsearch's that requires its own media type and product header."""
    return any(name in _MEDIA and value.startswith(_VENDOR) for name, value in headers)


def plain_types(headers: RawHeaders) -> RawHeaders:
    """Replace Elasticsearch's own media types by those that OpenSearch accepts."""
    return _replaced(headers, _plain)


def older_types(headers: RawHeaders, major: int) -> RawHeaders:
    """Replace the version that media types are compatible with by an older one."""
    return _replaced(headers, lambda value: _COMPATIBLE_WITH.sub(rb"\g<1>%d" % major, value))


def compatible_with(headers: RawHeaders) -> int:
    """Return the newest version that a request's media types name; 0 for none."""
    named = (_COMPATIBLE_WITH.search(value) for name, value in headers if name in _MEDIA)
    return max((int(found[2][:9]) for found in named if found), default=0)  # no version has more digits


def _replaced(headers: RawHeaders, replace: Callable[[bytes], bytes]) -> RawHeaders:
    return [(name, replace(value) if name in _MEDIA else value) for name, value in headers]


def _plain(value: bytes) -> bytes:
    if not value.startswith(_VENDOR):
        return value
    subtype = value[len(_VENDOR) :].partition(b";")[0].strip()
    return b"application/" + subtype


class CallerKeys:
    """Keys of caches that hold what was found out in a caller's name; no credential is stored.

    Any header may restrict what a caller sees: security plugins and proxies read headers of their own.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, headers: RawHeaders, target: bytes) -> bytes:
        """Return the key of a caller's headers and a target."""
        parts = [target, *(part for pair in callers(headers) if pair[0] not in _NOT_RIGHTS for part in pair)]
        return blake2b(b"".join(b"%d:%b" % (len(part), part) for part in parts), key=self._key).digest()

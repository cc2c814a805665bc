"""Elasticsearch's own media types, which its clients send and which not every engine accepts.

A client of version 9 sends `application/vnd.elasticsearch+json;compatible-with=9`. OpenSearch accepts none of these
types, and Elasticsearch 8 only `compatible-with=8` and 7.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from es_ttc.serving.http.caller import RawHeaders
from es_ttc.serving.http.upstream import Upstream

PRODUCT_HEADER = (b"x-elastic-product", b"Elasticsearch")
"""Elasticsearch's clients require it of every response."""
COMPATIBLE_HEADER = b"x-ttc-compatible-with"
"""Response header with the version to which the client's media types were translated."""
_VENDOR = b"application/vnd.elasticsearch+"
_MEDIA = (b"accept", b"content-type")
_COMPATIBLE_WITH = re.compile(rb"(compatible-with=)(\d+)")


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Headers with media types that the engine accepts."""

    headers: RawHeaders
    response_headers: RawHeaders


class MediaTypes:
    """Replaces media types that the engine does not accept.

    Args:
        upstream: The engine.
        translate: Whether types for a newer Elasticsearch are replaced by those of the engine's version.
    """

    def __init__(self, upstream: Upstream, *, translate: bool) -> None:
        self._upstream = upstream
        self._translate = translate

    async def negotiated(self, headers: RawHeaders) -> Negotiated:
        """Return headers with media types that the engine accepts.

        Raises:
            EngineUnavailable: The engine does not answer.
        """
        if not asks_vendor_type(headers):
            return Negotiated(headers, [])
        if await self._upstream.product() == "opensearch":
            return Negotiated(plain_types(headers), [PRODUCT_HEADER])
        version = await self._upstream.version(headers) if self._translate else None
        if version is None or version.accepts_media_types_of(_compatible_with(headers)):
            return Negotiated(headers, [])
        major = version.numbers[0]
        return Negotiated(older_types(headers, major), [(COMPATIBLE_HEADER, b"%d" % major)])


def asks_vendor_type(headers: RawHeaders) -> bool:
    """Return whether the client is one of Elasticsearch's that requires its own media type and product header."""
    return any(name in _MEDIA and value.startswith(_VENDOR) for name, value in headers)


def plain_types(headers: RawHeaders) -> RawHeaders:
    """Replace Elasticsearch's own media types by those that OpenSearch accepts."""
    return _replaced(headers, _plain)


def older_types(headers: RawHeaders, major: int) -> RawHeaders:
    """Replace the version that media types are compatible with by an older one."""
    return _replaced(headers, lambda value: _COMPATIBLE_WITH.sub(rb"\g<1>%d" % major, value))


def _compatible_with(headers: RawHeaders) -> int:
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

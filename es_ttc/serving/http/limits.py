"""Limits of a search with a `ttc` section, checked before it causes much work."""

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from es_ttc.errors import InvalidRequest, RequestTooLarge
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.body_memory import too_large
from es_ttc.settings import GatewaySettings

MARK = b'"ttc"'
"""A body without these bytes has no `ttc` section."""
MARKS = (MARK, b'"query_text"')
"""A body without any of these bytes has no `ttc` section."""

_OUR_KEY = re.compile(rb'"ttc"\s*:')
_PIECE = 2**20
_FED = 2**16  # bytes after a gzip member's end are copied: feed few at a time
_MEMBER = b"\x1f\x8b\x08"
MAX_MEMBERS = 1000
"""Gzip members of a body that is read; each takes time, however little it holds."""
_KEY_LENGTH = 64  # of a section's name with white space up to its colon
_MAX_DIGITS = 1000  # as in the engines: longer numbers take quadratic time to parse


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of searches with a `ttc` section; other requests are passed through."""

    body_mb: int = 10
    values: int = 500_000
    objects: int = 50_000
    depth: int = 100
    items: int = 1000
    clauses: int = 64
    query_chars: int = 32_768
    section_values: int = 5000

    @property
    def body_bytes(self) -> int:
        """Maximum size of the body, in bytes."""
        return self.body_mb * 2**20

    def too_long(self) -> RequestTooLarge:
        """Return the error for a body that exceeds it."""
        return RequestTooLarge(
            f"a search with a [ttc] section may be at most {self.body_mb} MiB long: send less, or raise "
            "[max_ttc_body_mb]"
        )

    def names_section(self, text: bytes) -> bool:
        """Return whether a body, or a piece of one, has the section's name as a key."""
        return _OUR_KEY.search(text) is not None

    def admits(self, text: bytes) -> bool:
        """Return whether a body is to be parsed for a `ttc` section; one without the section's name always is.

        Raises:
            RequestTooLarge: It has the name as a key, and exceeds the size.
            InvalidRequest: It has the name as a key, and exceeds a limit; the message names it.
        """
        if not any(mark in text for mark in MARKS):
            return True
        try:
            self.check_text(text)
        except InvalidRequest:
            if self.names_section(text):
                raise
            return False
        return True

    def check_text(self, text: bytes) -> None:
        """Check a body before it is decoded, by counting bytes, also inside strings: the limits are approximate.

        Raises:
            RequestTooLarge: It exceeds the size.
            InvalidRequest: It exceeds a limit; the message names it.
        """
        if len(text) > self.body_bytes:
            raise self.too_long()
        containers = text.count(b"{") + text.count(b"[")
        _require(containers + text.count(b":"), self.objects, "keys, objects and arrays", "max_request_objects")
        _require(containers + text.count(b","), self.values, "values", "max_request_values")
        if len(text) > _MAX_DIGITS and jsonio.has_digits(text, _MAX_DIGITS + 1):
            raise InvalidRequest(
                f"a search with a [ttc] section holds a number of more than {_MAX_DIGITS:,} digits: round it"
            )

    def admits_items(self, text: bytes) -> bool:
        """Return whether the searches of an `_msearch` are to be parsed one by one.

        Raises:
            InvalidRequest: One has a `ttc` section, and there are more than allowed.
        """
        count = text.count(b"\n") // 2
        if count > self.items and self.names_section(text):
            _require(count, self.items, "items", "max_msearch_items", what_it_is="an [_msearch]")
        return count <= self.items

    def check_query(self, texts: Iterable[str]) -> None:
        """Check the length of a query's texts.

        Raises:
            InvalidRequest: Together they are longer than allowed.
        """
        length = sum(map(len, texts))
        if length > self.query_chars:
            raise InvalidRequest(
                f"the query's text is {length:,} characters long, and at most {self.query_chars:,} are encoded: give a "
                "shorter [ttc.query_text], or raise [max_query_chars]"
            )

    def check_section(self, section: Any) -> None:
        """Check the number of values in a section, most of them in `params`.

        Raises:
            InvalidRequest: It contains more values than allowed.
        """
        if count_values(section, self.section_values) > self.section_values:
            raise InvalidRequest(
                f"[ttc] may hold at most {self.section_values:,} values: give shorter lists in [ttc.params], or raise "
                "[max_section_values]"
            )

    def check_clauses(self, count: int, hook: str) -> None:
        """Check the number of `ttc` clauses.

        Raises:
            InvalidRequest: There are more than allowed.
        """
        _require(count, self.clauses, f"[{hook}] clauses", "max_ttc_clauses")

    def decoded(self, text: bytes) -> Any:
        """Decode a body, or one line of an `_msearch` body, that has passed :meth:`check_text`.

        Raises:
            ValueError: The engine may read it in another way; see :func:`es_ttc.serving.http.jsonio.loads_unique`.
            InvalidRequest: It is nested too deeply.
        """
        data = jsonio.loads_unique(text)
        if text.count(b"{") + text.count(b"[") > self.depth and deeper_than(data, self.depth):
            raise InvalidRequest(
                f"a search with a [ttc] section is nested more than {self.depth} levels deep: write it flatter, or "
                "raise [max_request_depth]"
            )
        return data


def request_limits(settings: GatewaySettings) -> RequestLimits:
    """Return the limits from the settings."""
    return RequestLimits(
        body_mb=settings.max_ttc_body_mb,
        values=settings.max_request_values,
        objects=settings.max_request_objects,
        depth=settings.max_request_depth,
        items=settings.max_msearch_items,
        clauses=settings.max_ttc_clauses,
        query_chars=settings.max_query_chars,
        section_values=settings.max_section_values,
    )


def decompressed(body: bytes, encoding: str, limit: int, limits: RequestLimits | None = None) -> bytes | None:
    """Return a body without its Content-Encoding; None if it is left to the engine.

    That is the case for an unknown encoding, for more than :data:`MAX_MEMBERS` gzip members, and for a body that is
    longer than a search with a section may be and has none. The body is decompressed in parts, so that no other thread
    waits for the whole.

    Raises:
        InvalidRequest: It does not match its Content-Encoding.
        RequestTooLarge: It is longer than ``limit`` bytes once decompressed, or than a search with a section may be.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        return None
    if not body or body.count(_MEMBER) > MAX_MEMBERS:
        return body or None
    pieces: list[bytes] = []
    length, before = 0, b""
    for piece in inflated(body):
        length += len(piece)
        if length > limit:
            raise too_large(limit)
        if limits is None or length <= limits.body_bytes:
            pieces.append(piece)
        elif limits.names_section(b"".join([*pieces, before, piece])):
            raise limits.too_long()
        else:
            pieces, before = [], piece[-_KEY_LENGTH:]
    return b"".join(pieces) if limits is None or length <= limits.body_bytes else None


def inflated(body: bytes) -> Iterator[bytes]:
    """Yield what a gzip body holds, in pieces; it may have several members, as in the engines.

    Raises:
        InvalidRequest: It is no gzip, ends too early, or has more than :data:`MAX_MEMBERS` members.
    """
    if body.count(_MEMBER) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has more than {MAX_MEMBERS} gzip members: compress it in one piece")
    inflate, rest = zlib.decompressobj(wbits=31), memoryview(body)
    try:
        while rest:
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=31)
            fed = rest[:_FED]
            yield inflate.decompress(fed, _PIECE)
            rest = rest[len(fed) - len(inflate.unconsumed_tail) - len(inflate.unused_data) :]
    except zlib.error as error:
        raise InvalidRequest(f"the body is not the gzip that its Content-Encoding says: {error}") from error
    if not inflate.eof:
        raise InvalidRequest("the body's gzip stream ends too early")


def deeper_than(data: Any, depth: int) -> bool:
    """Return whether objects and arrays are nested deeper than a number of levels."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(depth):
        if not level:
            return False
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
    return bool(level)


def count_values(data: Any, most: int) -> int:
    """Return the number of values in decoded JSON, without keys; counting ends beyond ``most``."""
    count, stack = 0, [data]
    while stack and count <= most:
        node = stack.pop()
        count += 1
        if isinstance(node, dict | list):
            if len(node) > most:
                return len(node)
            stack.extend(_children(node))
    return count


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node


def _require(count: int, most: int, what: str, setting: str, *, what_it_is: str = "a search") -> None:
    if count > most:
        raise InvalidRequest(
            f"{what_it_is} with a [ttc] section may hold at most {most:,} {what}, this one holds {count:,}: send less, "
            f"or raise [{setting}]"
        )


DEFAULT_LIMITS = RequestLimits()

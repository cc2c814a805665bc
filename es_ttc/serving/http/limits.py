"""Limits of searches with a `ttc` section: their size once decompressed, and what they contain.

Other requests are passed through. Bytes are counted before a body is decoded, also inside strings, so these limits are
approximate.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from es_ttc.errors import InvalidRequest, RequestTooLarge
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.raw_request import body_too_large

SECTION_BYTES = (b'"ttc"', b'"query_text"')
"""A body without any of these bytes has no `ttc` section."""
MAX_BYTES = 10 * 2**20
MAX_VALUES = 500_000
MAX_OBJECTS = 50_000
"""Keys, objects and arrays together."""
MAX_DEPTH = 100
MAX_SEARCHES = 1000
"""Searches of an `_msearch`."""
MAX_CLAUSES = 64
"""Clauses of each of the hooks `knn` and `query` in one search."""
MAX_QUERY_CHARS = 32_768
MAX_SECTION_VALUES = 5000
MAX_MEMBERS = 1000
"""Gzip members of a body that is read; each takes time, however little it holds."""

_TOO_LONG = f"a search with a [ttc] section may be at most {MAX_BYTES // 2**20} MiB long: send less"
_OUR_KEY = re.compile(rb'"ttc"\s*:')
_PIECE = 2**20
_FED = 2**16  # bytes after a gzip member's end are copied: feed few at a time
_MEMBER = b"\x1f\x8b\x08"
_KEY_LENGTH = 64  # of a section's name with white space up to its colon
_MAX_DIGITS = 1000  # as in the engines: longer numbers take quadratic time to parse


def names_section(text: bytes) -> bool:
    """Return whether a body, or a piece of one, has the section's name as a key."""
    return _OUR_KEY.search(text) is not None


def may_have_section(text: bytes) -> bool:
    """Return whether a body is to be parsed for a section; refuse one that names a section and exceeds a limit."""
    if not any(mark in text for mark in SECTION_BYTES):
        return True
    try:
        check_text(text)
    except InvalidRequest:
        if names_section(text):
            raise
        return False
    return True


def check_text(text: bytes) -> None:
    """Check a body before it is decoded."""
    if len(text) > MAX_BYTES:
        raise RequestTooLarge(_TOO_LONG)
    containers = text.count(b"{") + text.count(b"[")
    _require(containers + text.count(b":"), MAX_OBJECTS, "keys, objects and arrays")
    _require(containers + text.count(b","), MAX_VALUES, "values")
    if len(text) > _MAX_DIGITS and jsonio.has_digits(text, _MAX_DIGITS + 1):
        raise InvalidRequest(
            f"a search with a [ttc] section holds a number of more than {_MAX_DIGITS:,} digits: round it"
        )


def admits_items(text: bytes) -> bool:
    """Return whether the searches of an `_msearch` are to be parsed; refuse too many if one names a section."""
    count = text.count(b"\n") // 2
    if count > MAX_SEARCHES and names_section(text):
        _require(count, MAX_SEARCHES, "items", request="an [_msearch]")
    return count <= MAX_SEARCHES


def check_query(texts: Iterable[str]) -> None:
    """Check the length of a query's texts."""
    length = sum(map(len, texts))
    if length > MAX_QUERY_CHARS:
        raise InvalidRequest(
            f"the query's text is {length:,} characters long, and at most {MAX_QUERY_CHARS:,} are encoded: give a "
            "shorter [ttc.query_text]"
        )


def check_section(section: Any) -> None:
    """Check the number of values in a section, most of them in `params`."""
    if count_values(section, MAX_SECTION_VALUES) > MAX_SECTION_VALUES:
        raise InvalidRequest(
            f"[ttc] may hold at most {MAX_SECTION_VALUES:,} values: give shorter lists in [ttc.params]"
        )


def check_clauses(count: int, hook: str) -> None:
    """Check the number of `ttc` clauses."""
    _require(count, MAX_CLAUSES, f"[{hook}] clauses")


def decoded_search(text: bytes) -> Any:
    """Decode a body, or one line of an `_msearch` body, that has passed :func:`check_text`."""
    data = jsonio.loads_unique(text)
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH and deeper_than(data, MAX_DEPTH):
        raise InvalidRequest(
            f"a search with a [ttc] section is nested more than {MAX_DEPTH} levels deep: write it flatter"
        )
    return data


def _require(count: int, most: int, what: str, *, request: str = "a search") -> None:
    if count > most:
        raise InvalidRequest(
            f"{request} with a [ttc] section may hold at most {most:,} {what}, this one holds {count:,}: send less"
        )


def decompressed(body: bytes, encoding: str, limit: int, *, search: bool = False) -> bytes | None:
    """Return a body of at most `limit` bytes without its Content-Encoding; None if it is left to the engine.

    That is the case for an unknown encoding, for more than :data:`MAX_MEMBERS` gzip members, and for the body of a
    search that is longer than one with a section may be and has none. The body is decompressed in parts, so that no
    other thread waits for the whole.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        return None
    if not body or body.count(_MEMBER) > MAX_MEMBERS:
        return None
    pieces: list[bytes] = []
    length, before = 0, b""
    for piece in inflated(body):
        length += len(piece)
        if length > limit:
            raise body_too_large(limit)
        if not search or length <= MAX_BYTES:
            pieces.append(piece)
        elif names_section(b"".join([*pieces, before, piece])):
            raise RequestTooLarge(_TOO_LONG)
        else:
            pieces, before = [], piece[-_KEY_LENGTH:]
    return b"".join(pieces) if not search or length <= MAX_BYTES else None


def inflated(body: bytes) -> Iterator[bytes]:
    """Yield what a gzip body holds, in pieces; it may have several members, as in the engines."""
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

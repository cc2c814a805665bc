"""A search request: its searches, decoded once, and its URL parameters, parsed once."""

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from json import JSONDecodeError
from typing import Any
from urllib.parse import parse_qsl, quote

from es_ttc.common.caches import ExpiringCache
from es_ttc.common.validation import shown
from es_ttc.errors import EsTtcError, InvalidRequest
from es_ttc.serving.http import jsonio
from es_ttc.serving.http.caller import Caller, CallerKeys
from es_ttc.serving.http.limits import (
    SECTION_BYTES,
    admits_items,
    decoded_search,
    decompressed,
    may_have_section,
    names_section,
)
from es_ttc.serving.http.raw_request import MAX_BODY, RawRequest
from es_ttc.serving.pool import Offload
from es_ttc.serving.request.body import FoundClause

Pairs = Sequence[tuple[str, str]]

_ANSWERED_HERE = frozenset({"filter_path", "format", "pretty", "source", "source_content_type"})
_NAMING = frozenset({"allow_no_indices", "expand_wildcards", "ignore_unavailable"})
_OF_SHARDS = frozenset({"preference", "routing", "search_type"})
_JSON_ACCEPTED = ("", "*/*", "application/*")
_TEMPLATE = b"/template"
_MAX_REMEMBERED = 10_000
_REMEMBERED_SECONDS = 600.0
_UNKNOWN_SIZE = 2**20
_SHOWN = 20  # characters of a body after an error of its syntax
_IN_HEADER = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_unavailable", "preference", "routing", "search_type",
)  # fmt: skip

SHARED_PARTS = ("derived", "pit", "runtime_mappings", "timeout")
"""Parts of a body that its filters may depend on: every further search of the request contains them."""


class Api(StrEnum):
    """The search interfaces of the engines."""

    SEARCH = "_search"
    MSEARCH = "_msearch"

    @property
    def kind(self) -> str:
        """The kind of its requests in metrics and logs."""
        return self.removeprefix("_")


@dataclass(frozen=True, slots=True)
class SearchParams:
    """The URL parameters of a request.

    Attributes:
        url: By name; the last one of a name counts, as in the engines.
        engine: Those that go to the engine, in order.
    """

    url: Mapping[str, str]
    engine: Pairs

    @classmethod
    def parse(cls, query_string: bytes) -> "SearchParams":
        """Decode a query string."""
        pairs = url_params(query_string.decode("latin-1"))
        return cls(dict(pairs), [pair for pair in pairs if pair[0] not in _ANSWERED_HERE])

    @property
    def filter_path(self) -> str:
        """The requested parts of the response; empty for all."""
        return self.url.get("filter_path", "")

    @property
    def pretty(self) -> bool:
        """Whether the response is indented."""
        return jsonio.is_pretty(self.url)


@dataclass(slots=True, eq=False)
class SearchItem:
    """One search of a request: the only one of a `_search`, one of several of an `_msearch`.

    Attributes:
        rewritten, retrieved, rescored: What its sections have become; :mod:`es_ttc.serving.search` knows the types.
    """

    header: bytes
    line: bytes
    path: bytes
    body: dict[str, Any] | None = None
    params: Pairs = ()
    error: EsTtcError | None = None
    clauses: Sequence[FoundClause] = ()
    is_changed: bool = False
    """Whether it had a section, and its body is not sent as received."""

    @property
    def as_sent(self) -> bytes | Mapping[str, Any]:
        """Its body for the engine: as received if it had no section."""
        return self.body if self.is_changed and self.body is not None else self.line

    @property
    def is_ours(self) -> bool:
        """Whether a section was found in it."""
        return self.is_changed or self.error is not None


@dataclass(slots=True)
class SearchRequest:
    """A request to `_search` or `_msearch`, or to a template of one of them."""

    incoming: RawRequest
    api: Api
    is_template: bool
    items: list[SearchItem]
    params: SearchParams
    started: float
    size: int

    @property
    def is_multi(self) -> bool:
        """Whether it is an `_msearch`: then an error concerns one search only."""
        return self.api is Api.MSEARCH

    @property
    def path(self) -> bytes:
        """The engine's path of the search interface; for a template, without ``/template``."""
        path = self.incoming.raw_path
        return path.rstrip(b"/").removesuffix(_TEMPLATE) if self.is_template else path

    def caller(self, item: SearchItem) -> Caller:
        """Return the request context with which documents of a search are read: headers, target, point in time."""
        segments = self.incoming.segments
        indices = "" if segments[0] in tuple(Api) else segments[0]
        header = _header(item)
        indices = quote(_joined(header.get("index") or header.get("indices") or ""), safe=",:*") or indices
        params = self._given(header, _NAMING)
        return Caller(self.incoming.headers, indices, params, (item.body or {}).get("pit"))

    def shard_params(self, item: SearchItem) -> Pairs:
        """Return the parameters of a search that decide which shards and copies are searched, and their statistics."""
        return self._given(_header(item), _OF_SHARDS)

    def _given(self, header: Mapping[str, Any], names: frozenset[str]) -> tuple[tuple[str, str], ...]:
        """Return some parameters from the URL and from a header line."""
        pairs = [*self.params.engine, *((name, _joined(value)) for name, value in header.items())]
        return tuple((name, value) for name, value in pairs if name in names)

    def target(self, item: SearchItem) -> bytes:
        """Return a key of a search's target."""
        return self.path + item.header

    def search_target(self, item: SearchItem) -> tuple[bytes, Sequence[tuple[str, str]]]:
        """Return path and URL parameters of a `_search` of an item's target."""
        if not self.is_multi:
            return item.path, item.params
        caller = self.caller(item)
        path = f"/{caller.indices}/_search" if caller.indices else "/_search"
        return path.encode(), [*caller.params, *self.shard_params(item)]

    def msearch_target(self) -> tuple[bytes, bytes]:
        """Return path and URL parameters of an `_msearch` with further searches of the request's target."""
        if not self.is_multi:
            return self.path.rstrip(b"/").removesuffix(b"_search") + b"_msearch", b""
        kind = self.params.url.get("search_type")
        return self.path, b"" if kind is None else b"search_type=" + kind.encode()

    def msearch_header(self, item: SearchItem) -> bytes:
        """Return the header line of further searches of an item's target in an `_msearch`."""
        if self.is_multi:
            return item.header
        return jsonio.dumps({name: value for name, value in self.params.url.items() if name in _IN_HEADER})

    @property
    def is_yaml(self) -> bool:
        """Whether the caller marks the body as YAML."""
        return self.incoming.header(b"content-type").partition(";")[0].strip().lower().endswith("yaml")

    def require_json(self) -> None:
        """Raise an error if the caller sends or accepts no JSON."""
        if self.is_yaml:
            raise InvalidRequest("a search with a [ttc] section is sent in JSON only: mark it as application/json")
        asked = self.params.url.get("format", "json").lower()
        accepted = [part.partition(";")[0].strip().lower() for part in self.incoming.header(b"accept").split(",")]
        if asked != "json" or not any(part in _JSON_ACCEPTED or part.endswith("json") for part in accepted):
            raise InvalidRequest("a search with a [ttc] section is answered in JSON only: ask for application/json")


class RequestReader:
    """Reads search requests."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    async def read(self, incoming: RawRequest, api: Api, started: float, *, is_template: bool) -> SearchRequest | None:
        """Return a decoded request; None if it contains no section."""
        text = await self._decompressed(incoming)
        params = SearchParams.parse(incoming.query_string)
        if text is not None and not text.strip():
            text = params.url.get("source", "").encode(errors="surrogateescape")
        text = text and text.removeprefix(BOM_UTF8)  # the engines ignore a byte order mark
        if text is None or not await self._offload.run(len(text), may_have_section, text):
            return None
        if not is_template and not may_be_ours(text):
            return None
        request = SearchRequest(incoming, api, is_template, [], params, started, len(text))
        items = await self._offload.run(len(text), self._items, request, text)
        if items is None:
            return None
        request.items = items
        return request

    async def _decompressed(self, incoming: RawRequest) -> bytes | None:
        """Return the whole body without its Content-Encoding; see :func:`decompressed`."""
        body, encoding = await incoming.read(), incoming.header(b"content-encoding")
        size = _UNKNOWN_SIZE if encoding else 0  # a small body may become a large one
        text = await self._offload.run(size, decompressed, body, encoding, MAX_BODY, search=True)
        if encoding:
            incoming.count(len(text or b""))
        return text

    def _items(self, request: SearchRequest, text: bytes) -> list[SearchItem] | None:
        """Return the searches; None if the engine is to answer the body as it came."""
        path = request.incoming.raw_path
        if not request.is_multi:
            items = [SearchItem(b"", text, path, params=request.params.engine)]
        else:
            lines = lines_of(text) if admits_items(text) else None
            if lines is None or not all(_is_readable(header) for header, _ in lines):
                return None
            items = [SearchItem(header, line, path) for header, line in lines]
        if not request.is_template:
            for item in items:
                self._decode(item, is_yaml=request.is_yaml)
        return items

    def _decode(self, item: SearchItem, *, is_yaml: bool) -> None:
        """Decode a body that may contain a section; the engine answers one that only it can read."""
        if not may_be_ours(item.line):
            return
        try:
            body = decoded_search(item.line)
        except InvalidRequest as error:
            item.error = error
        except JSONDecodeError as error:
            item.error = None if is_yaml else _syntax_error(error, item.line)
        except ValueError:
            return
        else:
            item.body = body if isinstance(body, dict) else None


def _syntax_error(error: JSONDecodeError, raw: bytes) -> InvalidRequest | None:
    """Return the error of a body that is no JSON, of which engines say that they do not know [ttc].

    None for a body without a section, and for one with comments, which the engines ignore.
    """
    text = error.doc.rstrip()
    if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n") - 1
        return InvalidRequest(f"the body is no JSON: it ends at line {line}, column {column}, before its last bracket")
    if not names_section(raw) or text[error.pos] == "/":
        return None
    return InvalidRequest(
        f"the body is no JSON: line {error.lineno}, column {error.colno}, at {shown(text[error.pos :][:_SHOWN])}: "
        f"{error.msg[:1].lower()}{error.msg[1:]}"
    )


def may_be_ours(text: bytes) -> bool:
    """Return whether a body contains the bytes of a section's name."""
    return any(mark in text for mark in SECTION_BYTES)


def lines_of(text: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return an `_msearch` body's pairs of header and search; None if the engine refuses its form.

    Its last line must end with a line break. A last header without a search is ignored, as in the engines.
    """
    lines = text.split(b"\n")
    if lines.pop() or (len(lines) % 2 and not _is_readable(lines.pop())):
        return None
    return list(zip(lines[::2], lines[1::2], strict=True))


def url_params(query_string: str) -> list[tuple[str, str]]:
    """Decode URL parameters, also those without a value."""
    return parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape")


def shared_parts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a body that its filters may depend on."""
    return {key: body[key] for key in SHARED_PARTS if key in body}


def _is_readable(header: bytes) -> bool:
    """Return whether a header line is read here as in the engine."""
    try:
        return not header.strip() or isinstance(jsonio.loads_unique(header), dict)
    except ValueError:
        return False


def _header(item: SearchItem) -> Mapping[str, Any]:
    """Return the decoded header line of a search; empty without one."""
    return jsonio.loads_object(item.header, "the header of an item") if item.header.strip() else {}


def _joined(value: Any) -> str:
    """Return a value of a header line in the form of a URL parameter."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class AcceptedCallers:
    """Callers and targets whose searches the engine has recently answered, by a keyed hash; no credential is stored.

    Encoding a query at the same time as the first pass saves time. But anyone could cause this work with a search that
    the engine refuses, or of a target that does not exist. So the query of the first search of each caller and target
    is encoded after the engine's answer.
    """

    def __init__(self) -> None:
        self._keys = CallerKeys()
        self._searches: ExpiringCache[bytes, None] = ExpiringCache(_MAX_REMEMBERED, _REMEMBERED_SECONDS)

    def has(self, request: SearchRequest, item: SearchItem) -> bool:
        """Return whether the engine has recently answered a search of this caller and target."""
        return self._key(request, item) in self._searches

    def add(self, request: SearchRequest, item: SearchItem) -> None:
        """Remember that the engine has answered a search."""
        self._searches.put(self._key(request, item), None)

    def _key(self, request: SearchRequest, item: SearchItem) -> bytes:
        return self._keys.of(request.incoming.headers, request.target(item))

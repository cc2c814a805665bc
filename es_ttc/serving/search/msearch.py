"""How further searches of a request's target are asked together, as one `_msearch`."""

from collections.abc import Mapping
from typing import Any

from es_ttc.serving.http import jsonio
from es_ttc.serving.search.request import SearchItem, SearchRequest

_IN_HEADER = (
    "allow_no_indices", "allow_partial_search_results", "ccs_minimize_roundtrips", "expand_wildcards",
    "ignore_unavailable", "preference", "routing", "search_type",
)  # fmt: skip


SHARED_PARTS = ("derived", "pit", "runtime_mappings", "timeout")
"""Parts of a body that its filters may depend on: they go along with every further search."""


def shared_parts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a body that a filter may depend on."""
    return {key: body[key] for key in SHARED_PARTS if key in body}


def msearch_target(request: SearchRequest) -> tuple[bytes, bytes]:
    """Return the path and the URL parameters by which several searches of a request's target are asked at once."""
    if not request.is_multi:
        return request.path.rstrip(b"/").removesuffix(b"_search") + b"_msearch", b""
    kind = request.params.url.get("search_type")
    return request.path, b"" if kind is None else b"search_type=" + kind.encode()


def search_header(request: SearchRequest, item: SearchItem) -> bytes:
    """Return the header line of a search of a request's item in an `_msearch`."""
    if request.is_multi:
        return item.header
    return jsonio.dumps({name: value for name, value in request.params.url.items() if name in _IN_HEADER})

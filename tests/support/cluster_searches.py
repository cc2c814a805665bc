"""Searches of every kind that are compared between one shard and several nodes."""

from collections.abc import Callable, Mapping
from typing import Any

FIELDS = ("title", "text")
TIMEOUT = "60s"
"""Scoring budget: what is late for want of processors says nothing about a cluster."""
DFS = "search_type=dfs_query_then_fetch"

Body = dict[str, Any]


def _match(text: str) -> Body:
    return {"query": {"multi_match": {"query": text, "fields": [*FIELDS]}}, "size": 10, "_source": False}


def _rescored(method: str, **more: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, **more}
    return lambda text: {**_match(text), "rescore": {"window_size": 100, "ttc": {**section, "query_text": text}}}


def _retrieved(method: str, **params: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, "params": params}
    clause = {"field": "ttc.vector", "k": 10, "ttc": section}
    return lambda text: {"knn": {**clause, "query_text": text}, "size": 10, "_source": False}


def _rewritten(method: str, **params: Any) -> Callable[[str], Body]:
    section = {"method": method, "timeout": TIMEOUT, "params": {"text_fields": [*FIELDS], **params}}
    return lambda text: {"query": {"ttc": {**section, "query_text": text}}, "size": 10, "_source": False}


WITHOUT_US = "bm25"
SEARCHES: Mapping[str, Callable[[str], Body]] = {
    WITHOUT_US: _match,
    "dense": _rescored("dense"),
    "spectral": _rescored("spectral"),
    "nnn": _rescored("nnn"),
    "hybrid": _rescored("hybrid"),
    "blend": _rescored("blend"),
    "rr": _rescored("rr", params={"budget": 50}),
    "gar": _rescored("gar", params={"budget": 50}),
    "rgs": _rescored("rgs", params={"budget": 50}),
    "knn:dense": _retrieved("dense"),
    "knn:dense, exact": _retrieved("dense", exact=True),
    "knn:nnn": _retrieved("nnn"),
    "knn:nnn, exact": _retrieved("nnn", exact=True),
    "knn:softcentroid": _retrieved("softcentroid"),
    "rm3": _rewritten("rm3", weight=0.5),
    "sira": _rewritten("sira", weight=0.5, tau=1.0),
}
"""Each kind of search by its name: from a query's text to a body. The first one is the engine's own."""

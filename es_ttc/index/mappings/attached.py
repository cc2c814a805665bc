"""The side index of an attached index: its name, its marks and its body.

A *side index* has one document for each document of the source, with the same id and routing, its features, and a mark
of the write that they were made from (the source's UUID, `_seq_no`, `_primary_term`). An alias whose name is derived
from the source's points to it.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from es_ttc.engine.protocol import Capabilities
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.index import feature_properties, source_excludes, vector_settings
from es_ttc.index.mappings.spec import ROOT, IndexSpec

PENDING = "pending"  # `ttc.state` of a document that waits for its features
FAILED = "failed"  # `ttc.state` of a document that cannot have features; `ttc.reason` says why
CHECKPOINT = "checkpoint"  # `ttc.state` of the one document of a side index that belongs to no document of the source
CHECKPOINT_ID = "ttc-checkpoint"

ID = "ttc.id"  # the source's `_id` as a doc value, readable without stored fields
ROUTING = "ttc.routing"
SOURCE = "ttc.source"  # UUID of the source index: an index created again under the same name has other sequence numbers
SEQ_NO = "ttc.seq_no"
TERM = "ttc.term"
REASON = "ttc.reason"
ON_DEMAND = "on_demand"  # key of `_meta.ttc`: whether gateways encode the documents that searches find without features

_ALIAS_PREFIX = "ttc-side-"
_SIDE_NAME = re.compile(r"ttc-[0-9a-f]{8}-(.+)", re.DOTALL)
_MAX_NAME_LENGTH = 255

_KEYWORD = {"type": "keyword", "index": False}
_NUMBER = {"type": "long", "index": False}
_REASON = {"type": "keyword", "index": False, "doc_values": False, "store": True}


def side_alias(source: str) -> str:
    """Return the alias of a source's side index. Both are hidden: wildcards do not match them."""
    return f"{_ALIAS_PREFIX}{source}"


def new_side_name(source: str) -> str:
    """Return a name for a side index that no index had before, so that cached values never become stale."""
    name = f"ttc-{secrets.token_hex(4)}-{source}"
    if len(name.encode()) > _MAX_NAME_LENGTH:
        raise InvalidRequest(
            f"index [{source}] has a name of {len(source.encode())} bytes, which leaves no room for that of its side "
            "index (13 more): reindex it under a shorter name"
        )
    return name


def side_pattern(source: str) -> str:
    """Return the pattern that the names of a source's side indices match; others may match it too."""
    return f"ttc-*-{source}"


def is_side_of(name: str, mapping: Mapping[str, Any], source: str) -> bool:
    """Return whether an index is a side index of a source."""
    return _SIDE_NAME.fullmatch(name) is not None and source_of(mapping) == source


def source_of(mapping: Mapping[str, Any]) -> str | None:
    """Return the source of a side index, by its mapping; None for any other index."""
    found: str | None = mapping.get("_meta", {}).get(ROOT, {}).get("source")
    return found


def side_body(
    spec: IndexSpec, capabilities: Capabilities, source: str, settings: Mapping[str, Any], *, routing_required: bool
) -> dict[str, Any]:
    """Return settings and mappings of a side index, with the shards and the routing of its source."""
    names = ("number_of_shards", "number_of_routing_shards", "routing_partition_size")
    shape = {name: settings[f"index.{name}"] for name in names if f"index.{name}" in settings}
    marks = {ID: _KEYWORD, ROUTING: _KEYWORD, SOURCE: _KEYWORD, SEQ_NO: _NUMBER, TERM: _NUMBER, REASON: _REASON}
    properties = {**feature_properties(spec, capabilities), **_leaves(marks)}
    excludes = source_excludes(spec)
    return {
        "settings": {
            "index": {**shape, "hidden": True, "auto_expand_replicas": "0-1", **vector_settings(spec, capabilities)}
        },
        "mappings": {
            "_meta": {ROOT: {**spec.as_meta(), "source": source}},
            "_source": {"excludes": excludes if excludes == [ROOT] else [*excludes, *marks]},
            **({"_routing": {"required": True}} if routing_required else {}),
            "dynamic": False,
            "properties": {ROOT: {"type": "object", "dynamic": "strict", "properties": properties}},
        },
    }


def _leaves(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name.partition(".")[2]: dict(mapping) for name, mapping in fields.items()}

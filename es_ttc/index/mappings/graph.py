"""The mapping of a neighbour graph's index: one document for each document of the source, with the same id.

The graph is stored in an index of its own. In the source, a write of a document by another client would drop the
neighbours (they are not in `_source`), and building the graph again would write every document. An alias points to a
finished graph, or does not exist.

Each document has the content hash of its vector, and (unless the engine's own kNN built the graph) the vector itself, 4
bytes per component as doc values. So the graph is updated without reading the source's stored fields, which contain
large token vectors.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.attached import ID
from es_ttc.index.mappings.spec import HASH, ROOT, VERSION
from es_ttc.reranking.graph import GraphParams

NEIGHBOURS = "ttc.neighbours"  # ids, nearest first, as in `_source`; indexed, to find what links to one
NODE_VECTOR = "ttc.pooled"
GRAPH = "graph"  # key of `_meta.ttc` with `GraphMeta`

_ALIAS_PREFIX = "ttc-graph-"
_NAME = re.compile(r"ttc-neighbours-[0-9a-f]{8}-(.+)", re.DOTALL)
_MAX_NAME_LENGTH = 255


class GraphMeta(BaseModel):
    """Metadata of a graph."""

    model_config = ConfigDict(frozen=True)

    source: str
    holder: str  # UUID of the index from which the vectors were read: the source, or its side index
    encoder: str
    params: GraphParams
    builder: str  # `exact` or `hnsw` (computed here), or `engine` (the engine's own kNN)
    ready: bool = False
    # For each shard of the holder the `_seq_no` up to which every write is in the graph
    checkpoint: dict[int, int] = Field(default_factory=dict)
    owner: str = ""  # id of the running build; "" if none is known
    beats: int = 0  # number of heartbeats of that build

    @property
    def sign(self) -> tuple[str, int, bool]:
        """The fields that change while a build runs."""
        return self.owner, self.beats, self.ready

    def same_as(self, other: "GraphMeta") -> bool:
        """Return whether both describe the same graph, whatever their progress."""
        changing = {"ready", "checkpoint", "owner", "beats"}
        return self.model_dump(exclude=changing) == other.model_dump(exclude=changing)


def graph_alias(source: str) -> str:
    """Return the alias of a source's finished graph."""
    return f"{_ALIAS_PREFIX}{source}"


def graph_pattern(source: str) -> str:
    """Return the pattern that the names of a source's graphs match; others may match it too."""
    return f"ttc-neighbours-*-{source}"


def new_graph_name(source: str) -> str:
    """Return a name for a graph that no index had before."""
    name = f"ttc-neighbours-{secrets.token_hex(4)}-{source}"
    if len(name.encode()) > _MAX_NAME_LENGTH:
        raise InvalidRequest(f"index [{source}] has too long a name for a graph beside it (24 bytes more)")
    return name


def graph_meta(name: str, mapping: Mapping[str, Any]) -> GraphMeta | None:
    """Return the metadata of the graph in an index; None for any other index."""
    stored = mapping.get("_meta", {}).get(ROOT, {}).get(GRAPH)
    return None if stored is None or _NAME.fullmatch(name) is None else GraphMeta.model_validate(stored)


def as_meta(meta: GraphMeta) -> dict[str, Any]:
    """Return the ``_meta`` of a graph's index; its ``source`` is the name of the source, as in a side index."""
    return {ROOT: {"version": VERSION, "source": meta.source, GRAPH: meta.model_dump(mode="json")}}


def graph_body(meta: GraphMeta) -> dict[str, Any]:
    """Return settings and mappings of a graph's index."""
    fields = {
        NEIGHBOURS: {"type": "keyword", "doc_values": False},
        ID: {"type": "keyword", "index": False},
        HASH: {"type": "keyword", "index": False},
        NODE_VECTOR: {"type": "binary", "doc_values": True},
    }
    properties = {name.partition(".")[2]: mapping for name, mapping in fields.items()}
    return {
        "settings": {"index": {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1"}},
        "mappings": {
            "_meta": as_meta(meta),
            "_source": {"includes": [NEIGHBOURS]},
            "dynamic": False,
            "properties": {ROOT: {"type": "object", "dynamic": "strict", "properties": properties}},
        },
    }

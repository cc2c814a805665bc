"""What the index of a neighbour graph carries: one document for each document of the source, of the same id.

Neighbours stand in an index of their own. Inside the source a write of a document by anyone drops all that is ours
(it stands outside `_source`), and one changed document would take its edges along, though its neighbours' edges to it
would stay. Building the graph anew would write every document of the source again, token vectors and all, and a
half-built graph could not be told from a finished one. Here an alias leads to a finished graph or to none.

Each document has the content hash that its vector belongs to, and (unless the engine's own kNN built the graph) the
vector itself, 4 bytes a component as doc values: a change is mended from these, without reading the source's stored
fields, where token vectors stand in the way.
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

NEIGHBOURS = "ttc.neighbours"
"""Ids, nearest first: read from `_source`, which keeps their order; indexed, to find whose neighbour a document is."""
NODE_VECTOR = "ttc.pooled"
GRAPH = "graph"
"""Key of ``_meta.ttc`` with :class:`GraphMeta`."""

_ALIAS_PREFIX = "ttc-graph-"
_NAME = re.compile(r"ttc-neighbours-[0-9a-f]{8}-(.+)", re.DOTALL)
_LONGEST_NAME = 255


class GraphMeta(BaseModel):
    """Where a graph comes from.

    Attributes:
        source: Name of the index that is searched.
        holder: UUID of the index that the vectors are read from: it, or its side index.
        encoder: Identity of the vectors' encoder.
        params: Of the builder.
        builder: ``exact`` or ``hnsw`` (computed here), or ``engine`` (the engine's own kNN).
        ready: Whether it is finished.
        checkpoint: For each shard of the holder the `_seq_no` up to which it knows every write.
        owner: Who builds it; "" where nobody has said so.
        beats: How often that build has shown that it goes on.
    """

    model_config = ConfigDict(frozen=True)

    source: str
    holder: str
    encoder: str
    params: GraphParams
    builder: str
    ready: bool = False
    checkpoint: dict[int, int] = Field(default_factory=dict)
    owner: str = ""
    beats: int = 0

    @property
    def sign(self) -> tuple[str, int, bool]:
        """What changes for as long as somebody builds it."""
        return self.owner, self.beats, self.ready

    def same_as(self, other: "GraphMeta") -> bool:
        """Whether both say how the same graph is made, however far it is."""
        changing = {"ready", "checkpoint", "owner", "beats"}
        return self.model_dump(exclude=changing) == other.model_dump(exclude=changing)


def graph_alias(source: str) -> str:
    """Return the alias of a source's finished graph."""
    return f"{_ALIAS_PREFIX}{source}"


def graph_pattern(source: str) -> str:
    """Return the pattern that the names of a source's graphs match; others may match it too."""
    return f"ttc-neighbours-*-{source}"


def new_graph_name(source: str) -> str:
    """Return a name for a graph that no index had before.

    Raises:
        InvalidRequest: The source's own name leaves no room.
    """
    name = f"ttc-neighbours-{secrets.token_hex(4)}-{source}"
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidRequest(f"index [{source}] has too long a name for a graph beside it (24 bytes more)")
    return name


def graph_meta(name: str, mapping: Mapping[str, Any]) -> GraphMeta | None:
    """Return what an index says about the graph in it; None for any other index."""
    told = mapping.get("_meta", {}).get(ROOT, {}).get(GRAPH)
    return None if told is None or _NAME.fullmatch(name) is None else GraphMeta.model_validate(told)


def as_meta(meta: GraphMeta) -> dict[str, Any]:
    """Return the ``_meta`` of a graph's index; ``source`` says there, as in a side index, whose it is."""
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

"""A graph as it is stored in the engine: its index, its alias, its documents."""

import asyncio
import base64
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from es_ttc.engine.protocol import Engine, delete_if_there, none_if_missing
from es_ttc.errors import EngineError
from es_ttc.index.attach.target import bulk_line
from es_ttc.index.ingest.bulk import ActionLines, write
from es_ttc.index.mappings.attached import ID
from es_ttc.index.mappings.graph import (
    NEIGHBOURS,
    NODE_VECTOR,
    GraphMeta,
    as_meta,
    graph_alias,
    graph_meta,
    graph_pattern,
)
from es_ttc.index.mappings.spec import HASH, ROOT
from es_ttc.vectors.packed import pack_tokens, unpack_tokens
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.tokens import Float32, TokenVectors

AT_ONCE = 1000  # number of documents per read or write

_HIDDEN_TOO = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
_LEAF = NEIGHBOURS.partition(".")[2]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One document of a graph: the content hash of its text, its neighbours, nearest first, maybe its vector."""

    id: str
    hash: str
    neighbours: tuple[str, ...]
    vector: Float32 | None = None


async def graphs_of(engine: Engine, source: str) -> dict[str, GraphMeta]:
    """Return all graphs of an index by name: the one in use, unfinished and abandoned ones."""
    found = await none_if_missing(engine.request("GET", f"/{graph_pattern(source)}/_mapping", params=_HIDDEN_TOO))
    graphs = {name: graph_meta(name, entry["mappings"]) for name, entry in sorted((found or {}).items())}
    return {name: meta for name, meta in graphs.items() if meta is not None and meta.source == source}


async def serving_graph(engine: Engine, source: str) -> tuple[str, GraphMeta] | None:
    """Return the graph that the alias points to; None if there is none."""
    found = await none_if_missing(engine.request("GET", f"/_alias/{graph_alias(source)}"))
    if found is None:
        return None
    graphs = await graphs_of(engine, source)
    return next(((name, graphs[name]) for name in found if name in graphs), None)


async def switch(engine: Engine, source: str, graph: str) -> None:
    """Set the alias to one graph, and remove it from all others, in one step."""
    alias = graph_alias(source)
    others = [name for name in await graphs_of(engine, source) if name != graph]
    actions: list[Mapping[str, Any]] = [{"add": {"index": graph, "alias": alias, "is_hidden": True}}]
    actions += [{"remove": {"index": name, "alias": alias, "must_exist": False}} for name in others]
    await engine.request("POST", "/_aliases", body={"actions": actions})


async def save(engine: Engine, graph: str, meta: GraphMeta) -> None:
    """Write a graph's metadata."""
    await engine.put_meta(graph, as_meta(meta))


async def delete_graphs(engine: Engine, source: str) -> list[str]:
    """Delete all graphs of an index, with their alias, and return their names."""
    names = list(await graphs_of(engine, source))
    for name in names:
        await delete_if_there(engine, name)
    return names


async def graph_pages(
    engine: Engine, graph: str, *, vectors: bool = False, query: Mapping[str, Any] | None = None
) -> AsyncIterator[list[GraphNode]]:
    """Yield a graph's documents, those of a query or all, in the order of writing."""
    filters = [query] if query else []
    async for hits in engine.pages(graph, _search_fields(AT_ONCE, vectors=vectors), *filters):
        yield [_node(hit) for hit in hits]


async def nodes(engine: Engine, graph: str, ids: Collection[str], *, vectors: bool = False) -> dict[str, GraphNode]:
    """Return some documents of a graph, by id; missing ones are absent."""
    requested = sorted(ids)

    async def part(start: int) -> list[dict[str, Any]]:
        some = requested[start : start + AT_ONCE]
        query = {"ids": {"values": some}}
        return await engine.hits(graph, {"query": query, **_search_fields(len(some), vectors=vectors)})

    parts = await asyncio.gather(*(part(start) for start in range(0, len(requested), AT_ONCE)))
    return {node.id: node for hits in parts for node in map(_node, hits)}


async def nodes_linking_to(engine: Engine, graph: str, ids: Collection[str]) -> dict[str, GraphNode]:
    """Return the documents that have one of some documents as neighbour, by id."""
    found: dict[str, GraphNode] = {}
    requested = sorted(ids)
    for start in range(0, len(requested), AT_ONCE):
        async for page in graph_pages(engine, graph, query={"terms": {NEIGHBOURS: requested[start : start + AT_ONCE]}}):
            found |= {node.id: node for node in page}
    return found


async def write_nodes(engine: Engine, graph: str, written: Sequence[GraphNode], gone: Collection[str] = ()) -> None:
    """Write documents of a graph, and remove others."""
    actions = [ActionLines(node.id, _lines(node)) for node in written]
    actions += [ActionLines(identifier, (bulk_line({"delete": {"_id": identifier}}),)) for identifier in sorted(gone)]
    for start in range(0, len(actions), AT_ONCE):
        outcomes = await write(engine, graph, actions[start : start + AT_ONCE])
        refused = next((item for item in outcomes if not item.ok and item.status != 404), None)
        if refused is not None:
            raise EngineError(f"neighbours of document [{refused.id}] were refused: {refused.error}")


def unpack_neighbours(blob: str) -> Float32:
    """Return the vector of a blob as engines return it; OpenSearch omits the padding."""
    vector: Float32 = dequantise(unpack_tokens(base64.b64decode(blob + "=" * (-len(blob) % 4))))[0]
    return vector


def _search_fields(size: int, *, vectors: bool = False) -> dict[str, Any]:
    fields = [ID, HASH, *([NODE_VECTOR] if vectors else [])]
    return {"size": size, "_source": [NEIGHBOURS], "docvalue_fields": fields}


def _node(hit: Mapping[str, Any]) -> GraphNode:
    fields = hit["fields"]
    blob = fields.get(NODE_VECTOR)
    neighbours = tuple(hit["_source"].get(ROOT, {}).get(_LEAF, ()))
    return GraphNode(fields[ID][0], fields[HASH][0], neighbours, unpack_neighbours(blob[0]) if blob else None)


def _lines(node: GraphNode) -> Sequence[bytes]:
    fields: dict[str, object] = {_LEAF: list(node.neighbours), "id": node.id, "hash": node.hash}
    if node.vector is not None:
        packed = pack_tokens(TokenVectors(node.vector.astype(np.float32)[np.newaxis]))
        fields["pooled"] = base64.b64encode(packed).decode("ascii")
    return bulk_line({"index": {"_id": node.id}}), bulk_line({ROOT: fields})

"""Build the graph of an index: read the vectors, compute neighbours in batches, and write them.

A graph is written to an index with a name of its own. An alias is set to it only when it is finished, so an unfinished
graph is never used. A stopped run keeps what it has written, and the next run with the same parameters resumes it.
Changes of the index during a build are found by `_seq_no` in the first update.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from es_ttc.engine.protocol import Engine, delete_if_there
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.source import settled_writes
from es_ttc.index.mappings.graph import GraphMeta
from es_ttc.reranking.graph import NO_NEIGHBOUR, GraphParams
from es_ttc.reranking.graph.build import method_for, steps
from es_ttc.reranking.graph.nearest import Numbers
from es_ttc.reranking.index_graph.build_lock import acquire_build_lock, deletable, heartbeat, require_ours
from es_ttc.reranking.index_graph.store import GraphNode, graph_pages, save, serving_graph, switch, write_nodes
from es_ttc.reranking.index_graph.vectors import VectorSource
from es_ttc.vectors.tokens import Float32

Builder = Literal["vectors", "engine"]


@dataclass(slots=True)
class BuildProgress:
    """Progress of a build."""

    index: str
    graph: str = ""
    builder: str = ""
    doing: str = "reading vectors"
    done: int = 0
    total: int = 0
    resumed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


ReportBuild = Callable[[BuildProgress], None]


class _Vectors(NamedTuple):
    """Ids and content hashes of n documents, and their vectors, ``(n, d)``."""

    ids: list[str]
    hashes: list[str]
    matrix: Float32


async def build_graph(
    engine: Engine,
    name: str,
    params: GraphParams | None = None,
    *,
    builder: Builder = "vectors",
    report: ReportBuild = lambda _: None,
) -> BuildProgress:
    """Build the graph of an index, or resume a stopped build. A present graph stays in use until the end."""
    params = params or GraphParams()
    corpus = await VectorSource.of(engine, name)
    built = BuildProgress(corpus.source)
    began = time.monotonic()
    settled = await settled_writes(engine, corpus.index)
    built.builder = "engine" if builder == "engine" else method_for(await corpus.count())
    meta = GraphMeta(
        source=corpus.source,
        holder=corpus.index.uuid,
        encoder=corpus.encoder,
        params=params,
        builder=built.builder,
        checkpoint=settled,
    )
    built.graph, meta, left = await acquire_build_lock(engine, meta)
    serving = await serving_graph(engine, corpus.source)
    async with heartbeat(engine, built.graph, meta):
        await _fill(corpus, engine, settled, built, meta, report)
    await require_ours(engine, built.graph, meta)
    await save(engine, built.graph, meta.model_copy(update={"ready": True}))
    await switch(engine, corpus.source, built.graph)
    for other in deletable(serving[0] if serving else None, left, built.graph):
        await delete_if_there(engine, other)
    built.seconds["total"] = time.monotonic() - began
    return built


async def _fill(
    corpus: VectorSource,
    engine: Engine,
    settled: dict[int, int],
    built: BuildProgress,
    meta: GraphMeta,
    report: ReportBuild,
) -> None:
    """Write the neighbours of all documents that are not in the graph yet."""
    began = time.monotonic()
    read = await _read(corpus, settled, built, report)
    built.seconds["reading"] = time.monotonic() - began
    await engine.refresh(built.graph)
    known = {node.id: node.hash async for page in graph_pages(engine, built.graph) for node in page}
    contents = zip(read.ids, read.hashes, strict=True)
    todo = [at for at, (identifier, content) in enumerate(contents) if known.get(identifier) != content]
    built.resumed = len(read.ids) - len(todo)
    built.doing, built.done, built.total = "finding neighbours", built.resumed, len(read.ids)
    report(built)
    async for nodes in _neighbours(corpus, read, np.array(todo, np.int32), meta):
        await write_nodes(engine, built.graph, nodes)
        built.done += len(nodes)
        report(built)
    await write_nodes(engine, built.graph, [], known.keys() - set(read.ids))
    await engine.refresh(built.graph)


async def _read(corpus: VectorSource, settled: dict[int, int], built: BuildProgress, report: ReportBuild) -> _Vectors:
    """Read every document that has a vector."""
    built.total = await corpus.count()
    report(built)
    hashes: dict[str, str] = {}
    parts: list[Float32] = []
    async for page in corpus.read({}, settled):
        vectors: list[Float32] = []
        for one in page:
            if one.vector is None:
                continue
            if one.id in hashes:
                raise InvalidRequest(
                    f"index [{corpus.source}] has several documents of id [{one.id}], apart by their routing: a graph "
                    "names its documents by id alone"
                )
            hashes[one.id] = str(one.hash)
            vectors.append(one.vector)
        if vectors:
            parts.append(np.stack(vectors))
        built.done = len(hashes)
        report(built)
    return _Vectors([*hashes], [*hashes.values()], np.concatenate(parts) if parts else np.empty((0, 0), np.float32))


async def _neighbours(
    corpus: VectorSource, read: _Vectors, todo: Numbers, meta: GraphMeta
) -> AsyncIterator[list[GraphNode]]:
    """Yield documents with their neighbours, in batches."""
    if not len(todo):
        return
    ids, hashes, vectors = read
    if meta.builder == "engine":
        for start in range(0, len(todo), 256):
            some = todo[start : start + 256].tolist()
            found = await corpus.nearest([(ids[at], vectors[at]) for at in some], meta.params.degree)
            yield [GraphNode(ids[at], hashes[at], tuple(others)) for at, others in zip(some, found, strict=True)]
        return
    computing = steps(vectors, todo, meta.params, "exact" if meta.builder == "exact" else "hnsw")
    while (step := await asyncio.to_thread(next, computing, None)) is not None:
        rows, table = step
        yield [
            GraphNode(ids[at], hashes[at], tuple(ids[other] for other in row if other != NO_NEIGHBOUR), vectors[at])
            for at, row in zip(rows.tolist(), table.tolist(), strict=True)
        ]

"""Update a graph after documents were written, changed or deleted, by reading only the neighbourhood of the change.

Written documents are found by `_seq_no` from the graph's checkpoint on. The engine's kNN finds the documents nearest to
each. Most of these have R neighbours that are nearer still, and do not change. The others, the documents that have lost
a neighbour, and all their neighbours make a small corpus, in which :func:`es_ttc.reranking.graph.update` updates the
graph. Nothing else is read or written. Deleted documents are noticed only by the counts: if these differ, the ids of
the graph are compared with those of the index.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach.source import settled_writes
from es_ttc.index.mappings.graph import GraphMeta
from es_ttc.reranking.graph import NO_NEIGHBOUR, NeighbourGraph, takers_of, update_neighbours
from es_ttc.reranking.graph.nearest import Numbers
from es_ttc.reranking.index_graph.store import (
    GraphNode,
    graph_pages,
    nodes,
    nodes_linking_to,
    save,
    serving_graph,
    write_nodes,
)
from es_ttc.reranking.index_graph.vectors import VectorDocument, VectorSource
from es_ttc.vectors.tokens import Float32

_TOGETHER = 256  # changed documents per batch


@dataclass(slots=True)
class GraphUpdate:
    """Result of an update."""

    index: str
    graph: str
    written: int = 0
    deleted: int = 0
    rewired: int = 0
    read: int = 0
    seconds: float = 0.0


async def update_graph(engine: Engine, name: str) -> GraphUpdate:
    """Update the graph of an index after changes of its documents."""
    corpus = await VectorSource.of(engine, name)
    graph, meta = await finished_graph(engine, corpus)
    result = GraphUpdate(corpus.source, graph)
    began = time.monotonic()
    settled = await settled_writes(engine, corpus.index)
    await engine.refresh(graph)
    updater = _GraphUpdater(engine, corpus, graph, meta, result)
    waiting: list[VectorDocument] = []
    async for page in corpus.read(meta.checkpoint, settled):
        waiting += page
        while len(waiting) >= _TOGETHER:
            await updater.update_around(waiting[:_TOGETHER])
            waiting = waiting[_TOGETHER:]
    if waiting:
        await updater.update_around(waiting)
    gone = await _gone(engine, corpus, graph)
    for start in range(0, len(gone), _TOGETHER):
        await updater.update_around(
            [VectorDocument(identifier, None, None) for identifier in gone[start : start + _TOGETHER]]
        )
    await save(engine, graph, meta.model_copy(update={"checkpoint": settled}))
    result.seconds = time.monotonic() - began
    return result


async def finished_graph(engine: Engine, corpus: VectorSource) -> tuple[str, GraphMeta]:
    """Return the finished graph of an index."""
    serving = await serving_graph(engine, corpus.source)
    if serving is None:
        raise InvalidRequest(
            f"index [{corpus.source}] has no finished neighbour graph: run `es-ttc graph build {corpus.source}`"
        )
    graph, meta = serving
    if meta.holder != corpus.index.uuid or meta.encoder != corpus.encoder:
        raise InvalidRequest(
            f"the neighbour graph of [{corpus.source}] is of other vectors than the index has now: run `es-ttc graph "
            f"build {corpus.source}`, which makes a new one while the old one serves"
        )
    return graph, meta


async def _gone(engine: Engine, corpus: VectorSource, graph: str) -> list[str]:
    """Return the ids of a graph whose documents were deleted; they are searched only if the counts differ."""
    await engine.refresh(graph)
    if await engine.count(graph) == await corpus.count():
        return []
    gone: list[str] = []
    async for page in graph_pages(engine, graph):
        ids = {node.id for node in page}
        gone += sorted(ids - await corpus.existing(ids))
    return gone


class _GraphUpdater:
    """Updates the graph around a batch of documents at a time."""

    def __init__(self, engine: Engine, corpus: VectorSource, graph: str, meta: GraphMeta, result: GraphUpdate) -> None:
        self._engine = engine
        self._corpus = corpus
        self._graph = graph
        self._meta = meta
        self._result = result

    async def update_around(self, documents: Sequence[VectorDocument]) -> None:
        """Update the graph around documents in their present state; those whose vector has not changed are skipped."""
        before = await nodes(self._engine, self._graph, [document.id for document in documents])
        changed_documents = [
            document for document in documents if document.vector is not None and not _is_unchanged(document, before)
        ]
        gone = [document.id for document in documents if document.vector is None and document.id in before]
        if not changed_documents and not gone:
            return
        leaving = [*gone, *(document.id for document in changed_documents if document.id in before)]
        losing_a_neighbour = await nodes_linking_to(self._engine, self._graph, leaving) if leaving else {}
        changed = {document.id for document in changed_documents}
        near = await self._nearest(changed_documents, changed)
        if self._meta.builder == "engine":
            written = await self._searched_again(changed_documents, losing_a_neighbour.keys() - set(gone), near)
        else:
            written = await self._rewired(changed_documents, gone, before, losing_a_neighbour, near)
        await write_nodes(self._engine, self._graph, written, gone)
        await self._engine.refresh(self._graph)
        self._result.written += len(changed_documents)
        self._result.deleted += len(gone)
        self._result.rewired += len(written)

    async def _nearest(self, changed_documents: Sequence[VectorDocument], changed: Collection[str]) -> list[list[str]]:
        """Return the documents nearest to each new or changed one, in the graph and among the changed ones."""
        vectors_by_id = [
            (document.id, document.vector) for document in changed_documents if document.vector is not None
        ]
        params = self._meta.params
        count = params.degree if self._meta.builder == "engine" else params.candidates
        if self._corpus.searchable:
            return await self._corpus.nearest(vectors_by_id, count)
        ids: list[str] = []
        vectors = []
        async for page in graph_pages(self._engine, self._graph, vectors=True):
            for node in page:
                if node.vector is not None and node.id not in changed:
                    ids.append(node.id)
                    vectors.append(node.vector)
        ids += [identifier for identifier, _ in vectors_by_id]
        matrix = np.stack([*vectors, *(vector for _, vector in vectors_by_id)])
        first = len(vectors)
        found = []
        for at in range(first, len(ids)):
            cosines = matrix @ matrix[at]
            cosines[at] = -np.inf
            best = np.argsort(-cosines, kind="stable")[: min(count, len(ids) - 1)]
            found.append([ids[other] for other in best.tolist()])
        return found

    async def _searched_again(
        self,
        changed_documents: Sequence[VectorDocument],
        losing_a_neighbour: Collection[str],
        near: Sequence[Sequence[str]],
    ) -> list[GraphNode]:
        """Search by kNN the neighbours of changed documents and of all that may have them as neighbours."""
        touched = await nodes(self._engine, self._graph, {*losing_a_neighbour, *(one for row in near for one in row)})
        await self._engine.refresh(self._corpus.held.index)
        around = [document for document in await self._corpus.documents(touched) if document.vector is not None]
        self._result.read += len(touched)
        found = await self._corpus.nearest(
            [(one.id, one.vector) for one in around if one.vector is not None], self._meta.params.degree
        )
        written = [
            GraphNode(one.id, str(one.hash), tuple(ids)) for one, ids in zip(changed_documents, near, strict=True)
        ]
        own = {document.id for document in changed_documents}
        return written + [
            GraphNode(one.id, touched[one.id].hash, tuple(ids))
            for one, ids in zip(around, found, strict=True)
            if one.id not in own and touched[one.id].neighbours != tuple(ids)
        ]

    async def _rewired(
        self,
        changed_documents: Sequence[VectorDocument],
        gone: Sequence[str],
        before: Mapping[str, GraphNode],
        losing_a_neighbour: Mapping[str, GraphNode],
        near: Sequence[Sequence[str]],
    ) -> list[GraphNode]:
        """Update a small corpus: the neighbourhood of the change, and the neighbours of the documents in it."""
        params = self._meta.params
        small = _Subgraph(self._corpus.held.spec.encoder.dims, params.degree)
        hosts = {one for row in near for one in row}
        await self._read(small, hosts | losing_a_neighbour.keys() | before.keys())
        await self._read(small, {row[-1] for host in hosts if (row := small.rows.get(host, ()))})
        for one in changed_documents:
            small.put(one)
        by_number = sorted(zip(changed_documents, near, strict=True), key=lambda pair: small.number(pair[0].id))
        written = np.array([small.number(one.id) for one, _ in by_number], np.int32)
        candidates = small.table([row for _, row in by_number], max(1, params.candidates))
        losing = losing_a_neighbour.keys() | before.keys()
        takers = takers_of(candidates, written, small.vectors, small.farthest(hosts - losing))
        affected = {small.ids[at] for at in takers.tolist()} | losing
        await self._read(small, {neighbour for one in affected for neighbour in small.rows.get(one, ())})
        self._result.read += len(small.rows)
        table = small.table(
            [small.rows.get(identifier, ()) if identifier in affected else () for identifier in small.ids],
            params.degree,
        )
        updated, changed = await asyncio.to_thread(
            update_neighbours,
            NeighbourGraph(table),
            small.vectors,
            written=written.tolist(),
            deleted=[small.number(one) for one in gone],
            params=params,
            near=candidates,
            takers=takers,
        )
        rewritten = np.union1d(changed, written)
        lost = set(gone)
        return [small.node(at, updated) for at in rewritten.tolist() if small.ids[at] not in lost]

    async def _read(self, small: "_Subgraph", ids: Collection[str]) -> None:
        """Read documents that have not been read yet."""
        found = await nodes(self._engine, self._graph, set(ids) - small.rows.keys(), vectors=True)
        small.add(found.values())


class _Subgraph:
    """Some documents of a graph as arrays, numbered in the order in which they are added."""

    def __init__(self, dims: int, degree: int) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, tuple[str, ...]] = {}
        self._numbers: dict[str, int] = {}
        self._hashes: dict[str, str] = {}
        self._vectors: list[Float32] = []
        self._nothing = np.zeros(dims, np.float32)
        self._degree = degree

    @property
    def vectors(self) -> Float32:
        """The vectors, ``(n, d)``; zero where none is stored."""
        return np.stack(self._vectors)

    def add(self, some: Iterable[GraphNode]) -> None:
        """Add documents of the graph."""
        for node in some:
            self.rows[node.id] = node.neighbours
            self._place(node.id, node.hash, node.vector)

    def put(self, document: VectorDocument) -> None:
        """Add or replace a document in its present state."""
        self._place(document.id, str(document.hash), document.vector)

    def number(self, identifier: str) -> int:
        """Return a document's number."""
        return self._numbers[identifier]

    def table(self, rows: Sequence[Sequence[str]], width: int) -> Numbers:
        """Return ids as numbers, without ids that are not in this subgraph."""
        table = np.full((len(rows), width), NO_NEIGHBOUR, np.int32)
        for place, row in enumerate(rows):
            known = [self._numbers[one] for one in row if one in self._numbers][:width]
            table[place, : len(known)] = known
        return table

    def farthest(self, hosts: Collection[str]) -> Numbers:
        """Return the last neighbour of documents that have R neighbours, :data:`ABSENT` for all others."""
        last = np.full(len(self.ids), NO_NEIGHBOUR, np.int32)
        for host in hosts:
            row = self.rows.get(host, ())
            if len(row) == self._degree and row[-1] in self._numbers:
                last[self._numbers[host]] = self._numbers[row[-1]]
        return last

    def node(self, number: int, graph: NeighbourGraph) -> GraphNode:
        """Return a document with its neighbours in a graph of these numbers."""
        identifier = self.ids[number]
        neighbours = tuple(self.ids[other] for other in graph.of(number).tolist())
        return GraphNode(identifier, self._hashes[identifier], neighbours, self._vectors[number])

    def _place(self, identifier: str, content: str, vector: Float32 | None) -> None:
        if identifier not in self._numbers:
            self._numbers[identifier] = len(self.ids)
            self.ids.append(identifier)
            self._vectors.append(self._nothing)
        self._hashes[identifier] = content
        if vector is not None:
            self._vectors[self._numbers[identifier]] = vector


def _is_unchanged(document: VectorDocument, before: Mapping[str, GraphNode]) -> bool:
    return document.id in before and before[document.id].hash == document.hash

"""Update a graph after documents were written, changed or deleted, from what is near to the change alone.

What was written is found by `_seq_no` from the graph's checkpoint on. The engine's own kNN finds the documents nearest
to each. Most of these have R neighbours that are nearer still, and stay as they are; the others, and the documents that
have lost a neighbour, make a small corpus with all their neighbours, in which
:func:`es_ttc.reranking.graph.update` repairs the surroundings. Nothing else is read or written. That documents are gone
shows in the numbers only: where these differ, the graph's ids are compared with the index's.
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
from es_ttc.reranking.graph import ABSENT, NeighbourGraph, takers_of, update
from es_ttc.reranking.graph.neighbours import Numbers
from es_ttc.reranking.index_graph.store import (
    GraphNode,
    nodes,
    nodes_linking_to,
    pages,
    save,
    serving_graph,
    write_nodes,
)
from es_ttc.reranking.index_graph.vectors import VectorDocument, VectorSource
from es_ttc.vectors.tokens import Float32

_TOGETHER = 256
"""Changed documents that are mended at once."""


@dataclass(slots=True)
class GraphUpdate:
    """What became of a graph.

    Attributes:
        index: The index whose graph it is.
        graph: Name of the graph's own index.
        written: Documents that are new or have another vector.
        deleted: Documents that are gone, or have no vector any more.
        rewired: Documents whose neighbours are other than before, the written ones included.
        read: Documents of the graph that were looked at.
        seconds: Wall time.
    """

    index: str
    graph: str
    written: int = 0
    deleted: int = 0
    rewired: int = 0
    read: int = 0
    seconds: float = 0.0


async def update_graph(engine: Engine, name: str) -> GraphUpdate:
    """Bring the graph of an index up to date with its documents.

    May be stopped anywhere: what is not mended then is found again by the next update.

    Raises:
        InvalidRequest: There is no finished graph, or it is of other vectors: of an index made anew, another encoder.
        EngineError: The engine refuses.
        EngineUnavailable: It stayed busy or absent.
    """
    corpus = await VectorSource.of(engine, name)
    graph, meta = await finished_graph(engine, corpus)
    mended = GraphUpdate(corpus.source, graph)
    began = time.monotonic()
    settled = await settled_writes(engine, corpus.index)
    await engine.refresh(graph)
    mender = _GraphUpdater(engine, corpus, graph, meta, mended)
    waiting: list[VectorDocument] = []
    async for page in corpus.read(meta.checkpoint, settled):
        waiting += page
        while len(waiting) >= _TOGETHER:
            await mender.mend(waiting[:_TOGETHER])
            waiting = waiting[_TOGETHER:]
    if waiting:
        await mender.mend(waiting)
    gone = await _gone(engine, corpus, graph)
    for start in range(0, len(gone), _TOGETHER):
        await mender.mend([VectorDocument(identifier, None, None) for identifier in gone[start : start + _TOGETHER]])
    await save(engine, graph, meta.model_copy(update={"checkpoint": settled}))
    mended.seconds = time.monotonic() - began
    return mended


async def finished_graph(engine: Engine, corpus: VectorSource) -> tuple[str, GraphMeta]:
    """Return the graph that serves an index.

    Raises:
        InvalidRequest: There is none, or it is of other vectors.
    """
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
    """Return the ids of a graph whose documents have gone; looked for only where the numbers differ."""
    await engine.refresh(graph)
    if await engine.count(graph) == await corpus.count():
        return []
    gone: list[str] = []
    async for page in pages(engine, graph):
        ids = {node.id for node in page}
        gone += sorted(ids - await corpus.existing(ids))
    return gone


class _GraphUpdater:
    """Mends the surroundings of some documents at a time."""

    def __init__(self, engine: Engine, corpus: VectorSource, graph: str, meta: GraphMeta, mended: GraphUpdate) -> None:
        self._engine = engine
        self._corpus = corpus
        self._graph = graph
        self._meta = meta
        self._mended = mended

    async def mend(self, documents: Sequence[VectorDocument]) -> None:
        """Mend the graph around documents as they are now; those whose vector it has already are passed over."""
        had = await nodes(self._engine, self._graph, [one.id for one in documents])
        fresh = [one for one in documents if one.vector is not None and not _is_known(one, had)]
        gone = [one.id for one in documents if one.vector is None and one.id in had]
        if not fresh and not gone:
            return
        leaving = [*gone, *(one.id for one in fresh if one.id in had)]
        bereft = await nodes_linking_to(self._engine, self._graph, leaving) if leaving else {}
        changed = {one.id for one in fresh}
        near = await self._nearest(fresh, changed)
        if self._meta.builder == "engine":
            written = await self._asked_again(fresh, bereft.keys() - set(gone), near)
        else:
            written = await self._rewired(fresh, gone, had, bereft, near)
        await write_nodes(self._engine, self._graph, written, gone)
        await self._engine.refresh(self._graph)
        self._mended.written += len(fresh)
        self._mended.deleted += len(gone)
        self._mended.rewired += len(written)

    async def _nearest(self, fresh: Sequence[VectorDocument], changed: Collection[str]) -> list[list[str]]:
        """Return the nearest documents of each fresh one: of those that the graph has, and of the fresh ones."""
        asked = [(one.id, one.vector) for one in fresh if one.vector is not None]
        params = self._meta.params
        count = params.degree if self._meta.builder == "engine" else params.candidates
        if self._corpus.searchable:
            return await self._corpus.nearest(asked, count)
        ids: list[str] = []
        vectors = []
        async for page in pages(self._engine, self._graph, vectors=True):
            for node in page:
                if node.vector is not None and node.id not in changed:
                    ids.append(node.id)
                    vectors.append(node.vector)
        ids += [identifier for identifier, _ in asked]
        matrix = np.stack([*vectors, *(vector for _, vector in asked)])
        first = len(vectors)
        found = []
        for at in range(first, len(ids)):
            cosines = matrix @ matrix[at]
            cosines[at] = -np.inf
            best = np.argsort(-cosines, kind="stable")[: min(count, len(ids) - 1)]
            found.append([ids[other] for other in best.tolist()])
        return found

    async def _asked_again(
        self, fresh: Sequence[VectorDocument], bereft: Collection[str], near: Sequence[Sequence[str]]
    ) -> list[GraphNode]:
        """Ask the engine's kNN again for fresh documents and for all whose neighbours they may have become."""
        touched = await nodes(self._engine, self._graph, {*bereft, *(one for row in near for one in row)})
        await self._engine.refresh(self._corpus.held.index)
        around = [one for one in await self._corpus.documents(touched) if one.vector is not None]
        self._mended.read += len(touched)
        found = await self._corpus.nearest(
            [(one.id, one.vector) for one in around if one.vector is not None], self._meta.params.degree
        )
        written = [GraphNode(one.id, str(one.hash), tuple(ids)) for one, ids in zip(fresh, near, strict=True)]
        own = {one.id for one in fresh}
        return written + [
            GraphNode(one.id, touched[one.id].hash, tuple(ids))
            for one, ids in zip(around, found, strict=True)
            if one.id not in own and touched[one.id].neighbours != tuple(ids)
        ]

    async def _rewired(
        self,
        fresh: Sequence[VectorDocument],
        gone: Sequence[str],
        had: Mapping[str, GraphNode],
        bereft: Mapping[str, GraphNode],
        near: Sequence[Sequence[str]],
    ) -> list[GraphNode]:
        """Mend in a small corpus: what is near to the change, and the neighbours of what may change with it."""
        params = self._meta.params
        small = _Subgraph(self._corpus.held.spec.encoder.dims, params.degree)
        hosts = {one for row in near for one in row}
        await self._read(small, hosts | bereft.keys() | had.keys())
        await self._read(small, {row[-1] for one in hosts if (row := small.rows.get(one, ()))})
        for one in fresh:
            small.put(one)
        by_number = sorted(zip(fresh, near, strict=True), key=lambda pair: small.number(pair[0].id))
        written = np.array([small.number(one.id) for one, _ in by_number], np.int32)
        candidates = small.table([row for _, row in by_number], max(1, params.candidates))
        losing = bereft.keys() | had.keys()
        takers = takers_of(candidates, written, small.vectors, small.farthest(hosts - losing))
        mending = {small.ids[at] for at in takers.tolist()} | losing
        await self._read(small, {neighbour for one in mending for neighbour in small.rows.get(one, ())})
        self._mended.read += len(small.rows)
        table = small.table([small.rows.get(one, ()) if one in mending else () for one in small.ids], params.degree)
        mended, changed = await asyncio.to_thread(
            update,
            NeighbourGraph(table),
            small.vectors,
            written=written.tolist(),
            deleted=[small.number(one) for one in gone],
            params=params,
            near=candidates,
            takers=takers,
        )
        wanted = np.union1d(changed, written)
        lost = set(gone)
        return [small.node(at, mended) for at in wanted.tolist() if small.ids[at] not in lost]

    async def _read(self, small: "_Subgraph", ids: Collection[str]) -> None:
        """Read those of some documents that have not been read yet."""
        found = await nodes(self._engine, self._graph, set(ids) - small.rows.keys(), vectors=True)
        small.add(found.values())


class _Subgraph:
    """Some documents of a graph as arrays, which are numbered as they come.

    Args:
        dims: Components of a vector.
        degree: R.
    """

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
        """The vectors, ``(n, d)``; those that are not kept are zero."""
        return np.stack(self._vectors)

    def add(self, some: Iterable[GraphNode]) -> None:
        """Take in documents as the graph has them."""
        for node in some:
            self.rows[node.id] = node.neighbours
            self._place(node.id, node.hash, node.vector)

    def put(self, document: VectorDocument) -> None:
        """Take in a document as it is now."""
        self._place(document.id, str(document.hash), document.vector)

    def number(self, identifier: str) -> int:
        """Return a document's number."""
        return self._numbers[identifier]

    def table(self, rows: Sequence[Sequence[str]], width: int) -> Numbers:
        """Return ids as numbers, those alone that are here."""
        table = np.full((len(rows), width), ABSENT, np.int32)
        for place, row in enumerate(rows):
            known = [self._numbers[one] for one in row if one in self._numbers][:width]
            table[place, : len(known)] = known
        return table

    def farthest(self, hosts: Collection[str]) -> Numbers:
        """Return the last neighbour of those of some documents that have R, :data:`ABSENT` for all others."""
        last = np.full(len(self.ids), ABSENT, np.int32)
        for host in hosts:
            row = self.rows.get(host, ())
            if len(row) == self._degree and row[-1] in self._numbers:
                last[self._numbers[host]] = self._numbers[row[-1]]
        return last

    def node(self, number: int, graph: NeighbourGraph) -> GraphNode:
        """Return a document with the neighbours that it has in a graph of these numbers."""
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


def _is_known(document: VectorDocument, had: Mapping[str, GraphNode]) -> bool:
    return document.id in had and had[document.id].hash == document.hash

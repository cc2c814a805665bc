"""Mending a graph after documents were written, changed or deleted, from what is near to the change alone.

What was written is found by `_seq_no` from the graph's checkpoint on. The engine's own kNN finds the documents nearest
to each; with their neighbours, and those of documents that have lost one, they make a small corpus, in which
:func:`es_ttc.graph.update` mends the surroundings. Nothing else is read or written. That documents are gone shows in
the numbers only: where these differ, the graph's ids are compared with the index's.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from es_ttc.attach.source import settled_writes
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.graph import ABSENT, NeighbourGraph, update
from es_ttc.mappings.graph import GraphMeta
from es_ttc.neighbours.corpus import Corpus, Document
from es_ttc.neighbours.stored import Node, leading_to, nodes, pages, save, serving_graph, write_nodes

_TOGETHER = 256
"""Changed documents that are mended at once."""


@dataclass(slots=True)
class Mended:
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


async def update_graph(engine: Engine, name: str) -> Mended:
    """Bring the graph of an index up to date with its documents.

    May be stopped anywhere: what is not mended then is found again by the next update.

    Raises:
        InvalidRequest: There is no finished graph, or it is of other vectors: of an index made anew, another encoder.
        EngineError: The engine refuses.
        EngineUnavailable: It stayed busy or absent.
    """
    corpus = await Corpus.of(engine, name)
    graph, meta = await finished_graph(engine, corpus)
    mended = Mended(corpus.source, graph)
    began = time.monotonic()
    settled = await settled_writes(engine, corpus.index)
    await engine.refresh(graph)
    mender = _Mender(engine, corpus, graph, meta, mended)
    waiting: list[Document] = []
    async for page in corpus.read(meta.checkpoint, settled):
        waiting += page
        while len(waiting) >= _TOGETHER:
            await mender.mend(waiting[:_TOGETHER])
            waiting = waiting[_TOGETHER:]
    if waiting:
        await mender.mend(waiting)
    gone = await _gone(engine, corpus, graph)
    for start in range(0, len(gone), _TOGETHER):
        await mender.mend([Document(identifier, None, None) for identifier in gone[start : start + _TOGETHER]])
    await save(engine, graph, meta.model_copy(update={"checkpoint": settled}))
    mended.seconds = time.monotonic() - began
    return mended


async def finished_graph(engine: Engine, corpus: Corpus) -> tuple[str, GraphMeta]:
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


async def _gone(engine: Engine, corpus: Corpus, graph: str) -> list[str]:
    """Return the ids of a graph whose documents have gone; looked for only where the numbers differ."""
    await engine.refresh(graph)
    if await engine.count(graph) == await corpus.count():
        return []
    gone: list[str] = []
    async for page in pages(engine, graph):
        ids = {node.id for node in page}
        gone += sorted(ids - await corpus.existing(ids))
    return gone


class _Mender:
    """Mends the surroundings of some documents at a time."""

    def __init__(self, engine: Engine, corpus: Corpus, graph: str, meta: GraphMeta, mended: Mended) -> None:
        self._engine = engine
        self._corpus = corpus
        self._graph = graph
        self._meta = meta
        self._mended = mended

    async def mend(self, documents: Sequence[Document]) -> None:
        """Mend the graph around documents as they are now; those whose vector it has already are passed over."""
        had = await nodes(self._engine, self._graph, [one.id for one in documents])
        fresh = [one for one in documents if one.vector is not None and not _is_known(one, had)]
        gone = [one.id for one in documents if one.vector is None and one.id in had]
        if not fresh and not gone:
            return
        leaving = [*gone, *(one.id for one in fresh if one.id in had)]
        bereft = await leading_to(self._engine, self._graph, leaving) if leaving else {}
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

    async def _nearest(self, fresh: Sequence[Document], changed: Collection[str]) -> list[list[str]]:
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
        self, fresh: Sequence[Document], bereft: Collection[str], near: Sequence[Sequence[str]]
    ) -> list[Node]:
        """Ask the engine's kNN again for fresh documents and for all whose neighbours they may have become."""
        touched = await nodes(self._engine, self._graph, {*bereft, *(one for row in near for one in row)})
        await self._engine.refresh(self._corpus.held.index)
        around = [one for one in await self._corpus.documents(touched) if one.vector is not None]
        self._mended.read += len(touched)
        found = await self._corpus.nearest(
            [(one.id, one.vector) for one in around if one.vector is not None], self._meta.params.degree
        )
        written = [Node(one.id, str(one.hash), tuple(ids)) for one, ids in zip(fresh, near, strict=True)]
        own = {one.id for one in fresh}
        return written + [
            Node(one.id, touched[one.id].hash, tuple(ids))
            for one, ids in zip(around, found, strict=True)
            if one.id not in own and touched[one.id].neighbours != tuple(ids)
        ]

    async def _rewired(
        self,
        fresh: Sequence[Document],
        gone: Sequence[str],
        had: Mapping[str, Node],
        bereft: Mapping[str, Node],
        near: Sequence[Sequence[str]],
    ) -> list[Node]:
        """Mend in a small corpus: what is near to the change, and its neighbours."""
        hosts = {one for row in near for one in row}
        rows = {**bereft, **await nodes(self._engine, self._graph, hosts - bereft.keys()), **had}
        outer = {one for node in rows.values() for one in node.neighbours} - rows.keys()
        rows_needed = [*rows, *sorted(outer)]
        known = await nodes(self._engine, self._graph, rows_needed, vectors=True)
        self._mended.read += len(known)
        ids = list(dict.fromkeys([*known, *(one.id for one in fresh)]))
        number = {identifier: at for at, identifier in enumerate(ids)}
        dims = self._corpus.held.spec.encoder.dims
        vectors = np.zeros((len(ids), dims), np.float32)
        for identifier, node in known.items():
            if node.vector is not None:
                vectors[number[identifier]] = node.vector
        for one in fresh:
            vectors[number[one.id]] = one.vector
        params = self._meta.params
        table = np.full((len(ids), params.degree), ABSENT, np.int32)
        for identifier, node in rows.items():
            if identifier in number:
                row = [number[one] for one in node.neighbours if one in number][: params.degree]
                table[number[identifier], : len(row)] = row
        order = sorted(range(len(fresh)), key=lambda at: number[fresh[at].id])
        candidates = np.full((len(fresh), max(1, params.candidates)), ABSENT, np.int32)
        for place, at in enumerate(order):
            row = [number[one] for one in near[at] if one in number][: params.candidates]
            candidates[place, : len(row)] = row
        mended, changed = await asyncio.to_thread(
            update,
            NeighbourGraph(table),
            vectors,
            written=[number[one.id] for one in fresh],
            deleted=[number[one] for one in gone if one in number],
            params=params,
            near=candidates,
        )
        hashes = {identifier: node.hash for identifier, node in known.items()} | {
            one.id: str(one.hash) for one in fresh
        }
        lost = set(gone)
        wanted = {ids[at] for at in changed.tolist()} | {one.id for one in fresh}
        return [
            Node(one, hashes[one], tuple(ids[other] for other in mended.of(number[one]).tolist()), vectors[number[one]])
            for one in sorted(wanted - lost)
        ]


def _is_known(document: Document, had: Mapping[str, Node]) -> bool:
    return document.id in had and had[document.id].hash == document.hash

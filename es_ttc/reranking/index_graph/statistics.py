"""Statistics of the graph of an index: degrees, components, reachability, age."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.source import count_between, settled_writes
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.graph import GraphMeta
from es_ttc.reranking.graph import NO_NEIGHBOUR, GraphStatistics, NeighbourGraph, statistics
from es_ttc.reranking.graph.statistics import reachable
from es_ttc.reranking.index_graph.store import GraphNode, graph_pages, graphs_of
from es_ttc.reranking.index_graph.update import finished_graph
from es_ttc.reranking.index_graph.vectors import VectorSource

_SEEDS = 20
_DRAWS = 10


@dataclass(frozen=True, slots=True)
class Reachability:
    """Share of documents that can be reached from a few random seeds."""

    seeds: int
    share: float
    steps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GraphReport:
    """Description of a graph."""

    index: str
    graph: str
    meta: GraphMeta
    bytes: int | None
    figures: GraphStatistics
    reach: Reachability
    dangling: int
    documents: int
    written_since: int
    others: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether the index has changed since the graph was built or updated."""
        return self.written_since > 0 or self.documents != self.figures.documents


async def show_graph(engine: Engine, name: str) -> GraphReport:
    """Measure the graph of an index."""
    corpus = await VectorSource.of(engine, name)
    graph, meta = await finished_graph(engine, corpus)
    settled = await settled_writes(engine, corpus.index)
    await engine.refresh(graph)
    nodes = [node async for page in graph_pages(engine, graph, vectors=False) for node in page]
    loaded = _loaded(nodes)
    figures = statistics(loaded)
    return GraphReport(
        index=corpus.source,
        graph=graph,
        meta=meta,
        bytes=await stored_bytes(engine, graph),
        figures=figures,
        reach=_reach(loaded),
        dangling=sum(len(node.neighbours) for node in nodes) - figures.edges,
        documents=await corpus.count(),
        written_since=await count_between(engine, corpus.index, meta.checkpoint, settled),
        others=tuple(one for one in await graphs_of(engine, corpus.source) if one != graph),
    )


def _loaded(nodes: Sequence[GraphNode]) -> NeighbourGraph:
    """Return the graph over the nodes' numbers; edges to documents without a node are left out."""
    number = {node.id: at for at, node in enumerate(nodes)}
    table = np.full((len(nodes), max([1, *(len(node.neighbours) for node in nodes)])), NO_NEIGHBOUR, np.int32)
    for at, node in enumerate(nodes):
        row = [number[neighbour] for neighbour in node.neighbours if neighbour in number]
        table[at, : len(row)] = row
    return NeighbourGraph(table)


def _reach(graph: NeighbourGraph) -> Reachability:
    generator = np.random.default_rng(0)
    shares: Counter[int] = Counter()
    for _ in range(_DRAWS if len(graph) else 0):
        drawn = generator.choice(len(graph), min(_SEEDS, len(graph)), replace=False)
        shares.update(reachable(graph, drawn.tolist()).tolist())
    total = max(1, _DRAWS * len(graph))
    steps = tuple(shares[step] / total for step in range(max(shares, default=-1) + 1))
    return Reachability(min(_SEEDS, len(graph)), sum(steps), steps)

"""Statistics of the graph of an index: degrees, components, reachability, age, and a picture."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_ttc.engine.protocol import Engine
from es_ttc.errors import ConfigurationError
from es_ttc.index.attach.source import count_between, settled_writes
from es_ttc.index.mappings.contents import stored_bytes
from es_ttc.index.mappings.graph import GraphMeta
from es_ttc.reranking.graph import ABSENT, GraphStatistics, NeighbourGraph, statistics
from es_ttc.reranking.graph.statistics import reachable
from es_ttc.reranking.index_graph.store import GraphNode, graphs_of, pages
from es_ttc.reranking.index_graph.update import finished_graph
from es_ttc.reranking.index_graph.vectors import VectorSource
from es_ttc.vectors.tokens import Float32

_DRAWS = 10
_DRAWN = 80
"""Number of documents in the picture's map."""


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
    degrees: Mapping[int, int]
    in_degrees: Mapping[int, int]
    reach: Reachability
    dangling: int
    documents: int
    written_since: int
    others: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether the index has changed since the graph was built or updated."""
        return self.written_since > 0 or self.documents != self.figures.documents


@dataclass(frozen=True, slots=True)
class _LoadedGraph:
    graph: NeighbourGraph
    vectors: Float32 | None
    dangling: int


async def show_graph(engine: Engine, name: str, *, seeds: int = 20, picture: Path | None = None) -> GraphReport:
    """Measure the graph of an index."""
    corpus = await VectorSource.of(engine, name)
    graph, meta = await finished_graph(engine, corpus)
    settled = await settled_writes(engine, corpus.index)
    await engine.refresh(graph)
    found = [node async for page in pages(engine, graph, vectors=picture is not None) for node in page]
    loaded = _loaded(found)
    in_degrees = np.bincount(loaded.graph.table[loaded.graph.table != ABSENT], minlength=len(found))
    shown = GraphReport(
        index=corpus.source,
        graph=graph,
        meta=meta,
        bytes=await stored_bytes(engine, graph),
        figures=statistics(loaded.graph),
        degrees=_counted(loaded.graph.degrees),
        in_degrees=_counted(in_degrees),
        reach=_reach(loaded.graph, seeds),
        dangling=loaded.dangling,
        documents=await corpus.count(),
        written_since=await count_between(engine, corpus.index, meta.checkpoint, settled),
        others=tuple(one for one in await graphs_of(engine, corpus.source) if one != graph),
    )
    if picture is not None:
        _draw(shown, loaded, picture)
    return shown


def _loaded(found: Sequence[GraphNode]) -> _LoadedGraph:
    number = {node.id: at for at, node in enumerate(found)}
    table = np.full((len(found), max([1, *(len(node.neighbours) for node in found)])), ABSENT, np.int32)
    dangling = 0
    for at, node in enumerate(found):
        row = [number[one] for one in node.neighbours if one in number]
        dangling += len(node.neighbours) - len(row)
        table[at, : len(row)] = row
    vectors = [node.vector for node in found if node.vector is not None]
    whole = np.stack(vectors) if vectors and len(vectors) == len(found) else None
    return _LoadedGraph(NeighbourGraph(table), whole, dangling)


def _counted(values: NDArray[np.intp]) -> dict[int, int]:
    return dict(sorted(Counter(values.tolist()).items()))


def _reach(graph: NeighbourGraph, seeds: int) -> Reachability:
    generator = np.random.default_rng(0)
    shares: Counter[int] = Counter()
    for _ in range(_DRAWS if len(graph) else 0):
        drawn = generator.choice(len(graph), min(seeds, len(graph)), replace=False)
        shares.update(reachable(graph, drawn.tolist()).tolist())
    total = max(1, _DRAWS * len(graph))
    steps = tuple(shares[step] / total for step in range(max(shares, default=-1) + 1))
    return Reachability(min(seeds, len(graph)), sum(steps), steps)


def _draw(shown: GraphReport, loaded: _LoadedGraph, path: Path) -> None:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("a picture needs the package matplotlib: pip install 'es-ttc[evaluate]'") from error
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "es-ttc", "font.family": "sans-serif", "font.size": 10}
    blue, grey, orange = "#1769aa", "#8a96a3", "#d97706"
    with rc_context(style):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        degrees, reach, around = figure.subplots(1, 3, width_ratios=(1, 1, 1.1))
        greatest = max([*shown.degrees, *(key for key in shown.in_degrees if key <= 60), 1])
        counts = [
            sum(n for key, n in shown.in_degrees.items() if min(key, greatest) == at) for at in range(greatest + 1)
        ]
        degrees.bar(range(greatest + 1), counts, color=grey, label="is a neighbour of", width=0.9)
        degrees.bar(list(shown.degrees), list(shown.degrees.values()), color=blue, label="has neighbours", width=0.5)
        degrees.set(xlabel=f"documents (the last bar: {greatest} or more)", ylabel="number of documents")
        degrees.set_yscale(
            "log"
        )  # most documents have the greatest number of neighbours: one bar would hide all others
        degrees.set_title("degrees", fontsize=10)
        degrees.legend(frameon=False, fontsize=8)
        reach.bar(range(len(shown.reach.steps)), [100 * share for share in shown.reach.steps], color=blue)
        reach.set(xlabel="steps from the nearest seed", ylabel="% of documents")
        reach.set_title(f"{shown.reach.seeds} random seeds reach {shown.reach.share:.1%}", fontsize=10)
        _map(around, loaded, blue, grey, orange)
        for axes in (degrees, reach):
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(
            f"{shown.index}: {shown.figures.documents:,} documents, {shown.figures.edges:,} edges, "
            f"{len(shown.figures.components)} component{'s' if len(shown.figures.components) != 1 else ''}",
            fontsize=11,
        )
        try:
            figure.savefig(path, **({"metadata": {"Date": None}} if path.suffix == ".svg" else {"dpi": 150}))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the picture [{path}] cannot be written: {error}") from error


def _map(axes: Any, loaded: _LoadedGraph, blue: str, grey: str, orange: str) -> None:
    """Draw one document's surroundings: the documents within a few steps, by the main directions of their vectors."""
    axes.set_axis_off()
    if not len(loaded.graph):
        return
    middle = int(np.argmax(np.bincount(loaded.graph.table[loaded.graph.table != ABSENT], minlength=len(loaded.graph))))
    steps = reachable(loaded.graph, [middle])
    near = np.argsort(np.where(steps < 0, np.iinfo(np.intp).max, steps), kind="stable")[:_DRAWN]
    near = near[steps[near] >= 0]
    places = _laid_out(near, loaded)
    at = {int(document): place for place, document in enumerate(near)}
    for document in near.tolist():
        for other in loaded.graph.of(document).tolist():
            if other in at:
                axes.plot(*places[[at[document], at[other]]].T, color=grey, linewidth=0.25, zorder=1)
    axes.scatter(*places.T, s=9, color=blue, zorder=2)
    axes.scatter(*places[[at[middle]]].T, s=60, color=orange, edgecolors="white", zorder=3)
    axes.set_title(f"{len(near)} documents around the best-linked one", fontsize=10)


def _laid_out(near: NDArray[np.intp], loaded: _LoadedGraph) -> NDArray[np.float64]:
    if loaded.vectors is None:
        angles = np.linspace(0, 2 * np.pi, len(near), endpoint=False)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    centred = (loaded.vectors[near] - loaded.vectors[near].mean(axis=0)).astype(np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(near), 2))
    places[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
    return places

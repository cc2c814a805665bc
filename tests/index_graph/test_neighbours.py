"""The graph of an index in real engines: built, stopped, gone on with, mended, shown, deleted."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.mappings.graph import graph_alias
from es_ttc.reranking.graph import GraphParams, build
from es_ttc.reranking.graph.nearest import exact
from es_ttc.reranking.index_graph import (
    BuildProgress,
    build_graph,
    delete_graphs,
    graphs_of,
    serving_graph,
    show_graph,
    update_graph,
)
from es_ttc.reranking.index_graph.store import GraphNode, graph_pages
from es_ttc.vectors.tokens import Float32
from tests.index_graph.conftest import put, vectors

PARAMS = GraphParams(degree=8, candidates=24)


async def stored(engine: Engine, index: str) -> dict[str, GraphNode]:
    serving = await serving_graph(engine, index)
    assert serving is not None
    await engine.refresh(serving[0])
    return {node.id: node async for page in graph_pages(engine, serving[0], vectors=True) for node in page}


def recall(graph: dict[str, GraphNode], ids: Sequence[str], rows: Float32) -> float:
    """Return the share of each document's nearest that the graph's neighbours or theirs are."""
    nearest, _ = exact(rows, 5)
    found = []
    for at, identifier in enumerate(ids):
        around = set(graph[identifier].neighbours)
        around |= {one for other in graph[identifier].neighbours for one in graph[other].neighbours}
        found.append(np.mean([ids[other] in around for other in nearest[at].tolist()]))
    return float(np.mean(found))


async def test_the_graph_in_the_engine_is_the_one_in_memory(engine: Engine, corpus: str) -> None:
    reports: list[tuple[str, int, int]] = []
    built = await build_graph(
        engine, corpus, PARAMS, report=lambda so_far: reports.append((so_far.doing, so_far.done, so_far.total))
    )
    assert (built.builder, built.total, built.resumed) == ("exact", 600, 0)
    assert reports[0][0] == "reading vectors"
    assert reports[-1] == ("finding neighbours", 600, 600)
    found = await stored(engine, corpus)
    rows = vectors(600)
    in_memory = build(np.stack([rows[int(one[1:])] for one in found]), PARAMS)
    ids = list(found)
    for at, node in enumerate(found.values()):
        assert node.hash == f"h{node.id[1:]}"
        assert set(node.neighbours) == {ids[other] for other in in_memory.of(at).tolist()}
        assert node.vector is not None
        np.testing.assert_allclose(node.vector, rows[int(node.id[1:])], atol=1e-6)


async def test_the_engines_own_knn_builds_a_graph_without_vectors(engine: Engine, corpus: str) -> None:
    built = await build_graph(engine, corpus, PARAMS, builder="engine")
    assert built.builder == "engine"
    found = await stored(engine, corpus)
    assert all(node.vector is None and len({*node.neighbours} - {node.id}) == 8 for node in found.values())
    rows = vectors(600)
    nearest, _ = exact(rows, 8)
    shared = [len({f"d{one}" for one in nearest[at]} & set(found[f"d{at}"].neighbours)) / 8 for at in range(600)]
    assert np.mean(shared) > 0.9
    changed = vectors(1, seed=5)[0]
    await put(engine, corpus, {"d3": ("new", changed)})
    mended = await update_graph(engine, corpus)
    assert mended.written == 1
    again = await stored(engine, corpus)
    rows[3] = changed
    wanted = [f"d{one}" for one in exact(rows, 8, rows=np.array([3], np.int32))[0][0]]
    assert len(set(wanted) & set(again["d3"].neighbours)) >= 7
    assert sum("d3" in again[one].neighbours for one in wanted) >= 1


async def test_a_build_that_is_stopped_serves_nobody_and_is_gone_on_with(engine: Engine, corpus: str) -> None:
    def stop(so_far: BuildProgress) -> None:
        if so_far.doing == "finding neighbours" and so_far.done:
            raise asyncio.CancelledError

    bigger = {f"e{at}": (f"e{at}", row) for at, row in enumerate(vectors(1000, seed=1))}
    await put(engine, corpus, bigger)
    with pytest.raises(asyncio.CancelledError):
        await build_graph(engine, corpus, PARAMS, report=stop)
    assert await serving_graph(engine, corpus) is None
    [half] = await graphs_of(engine, corpus)
    with pytest.raises(InvalidRequest, match="es-ttc graph build"):
        await update_graph(engine, corpus)
    built = await build_graph(engine, corpus, PARAMS)
    assert (built.graph, built.resumed, built.total) == (half, 1024, 1600)
    assert len(await stored(engine, corpus)) == 1600
    assert (await show_graph(engine, corpus)).dangling == 0


async def test_a_graph_serves_until_the_next_one_is_finished(engine: Engine, corpus: str) -> None:
    first = await build_graph(engine, corpus, PARAMS)
    seen: list[str] = []

    async def serving() -> None:
        while True:
            found = await engine.request("GET", f"/_alias/{graph_alias(corpus)}")
            seen.extend(found)
            assert len(found) == 1
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(serving())
    second = await build_graph(engine, corpus, GraphParams(degree=4, candidates=16))
    watching.cancel()
    assert first.graph != second.graph
    assert set(seen) <= {first.graph, second.graph}
    assert list(await graphs_of(engine, corpus)) == [second.graph]


async def test_a_change_is_mended_as_well_as_a_rebuild_would(engine: Engine, corpus: str) -> None:
    await build_graph(engine, corpus, PARAMS)
    rows = {f"d{at}": row for at, row in enumerate(vectors(600))}
    changed = {f"d{at}": row for at, row in zip(range(0, 30, 3), vectors(10, seed=2), strict=True)}
    new = {f"n{at}": row for at, row in enumerate(vectors(10, seed=3))}
    rows |= changed | new
    await put(engine, corpus, {one: (f"x{one}", row) for one, row in (changed | new).items()})
    for at in range(100, 110):
        await engine.request("DELETE", f"/{corpus}/_doc/d{at}")
        del rows[f"d{at}"]
    await engine.refresh(corpus)
    mended = await update_graph(engine, corpus)
    assert (mended.written, mended.deleted) == (20, 10)
    found = await stored(engine, corpus)
    assert found.keys() == rows.keys()
    assert all(one in rows for node in found.values() for one in node.neighbours)
    matrix = np.stack([rows[one] for one in rows])
    mended_recall = recall(found, list(rows), matrix)
    nothing = await update_graph(engine, corpus)
    assert (nothing.written, nothing.deleted, nothing.rewired) == (0, 0, 0)
    assert not (await show_graph(engine, corpus)).stale
    await build_graph(engine, corpus, GraphParams(degree=8, candidates=25))
    assert mended_recall > recall(await stored(engine, corpus), list(rows), matrix) - 0.01


async def test_an_index_made_anew_needs_a_new_graph(engine: Engine, corpus: str) -> None:
    from es_ttc.index.mappings.index import create_index
    from tests.index_graph.conftest import SPEC

    await build_graph(engine, corpus, PARAMS)
    await engine.delete_index(corpus)
    await create_index(engine, corpus, SPEC)
    with pytest.raises(InvalidRequest, match="other vectors"):
        await update_graph(engine, corpus)
    built = await build_graph(engine, corpus, PARAMS)
    assert built.total == 0
    assert (await show_graph(engine, corpus)).figures.documents == 0


async def test_show_graph_counts_documents_edges_and_reach(engine: Engine, corpus: str) -> None:
    await build_graph(engine, corpus, PARAMS)
    shown = await show_graph(engine, corpus)
    assert (shown.figures.documents, shown.dangling) == (600, 0)
    assert 600 <= shown.figures.edges <= 600 * PARAMS.degree
    assert shown.reach.share > 0.9
    assert shown.reach.steps[0] == pytest.approx(20 / 600)
    assert not shown.stale
    await put(engine, corpus, {"d1": ("other", vectors(1)[0])})
    stale = await show_graph(engine, corpus)
    assert (stale.written_since, stale.stale) == (1, True)
    assert await delete_graphs(engine, corpus) == [shown.graph]
    with pytest.raises(InvalidRequest, match="neighbour graph"):
        await show_graph(engine, corpus)

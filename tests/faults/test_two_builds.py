import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from es_ttc.engine.connect import connect, connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import BuildProgress, build_graph, delete_graphs, graphs_of, serving_graph, show_graph
from es_ttc.settings import EngineSettings
from tests.index_graph.conftest import SPEC, put, vectors

ON_ONE_ENGINE = True

COUNT = 300
PARAMS = (GraphParams(degree=8), GraphParams(degree=4))


@pytest.fixture
async def engines(engine_url: str, index_name: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two clients of one engine, with an index of vectors."""
    first, second = [await connect(EngineSettings(engine=engine_url)) for _ in range(2)]
    await make_index(first, index_name)
    yield first, second
    await delete_graphs(first, index_name)
    for client in (first, second):
        await client.close()


async def make_index(engine: Engine, name: str) -> None:
    await create_index(engine, name, SPEC, IndexOptions(shards=1, replicas=0))
    await put(engine, name, {f"d{at}": (f"h{at}", row) for at, row in enumerate(vectors(COUNT))})


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("later", [0.0, 0.3])
async def test_second_build_of_a_graph_is_refused(
    engines: tuple[Engine, Engine], index_name: str, same: bool, later: float
) -> None:
    async def build(engine: Engine, params: GraphParams, wait: float) -> BuildProgress:
        await asyncio.sleep(wait)
        return await build_graph(engine, index_name, params)

    wanted = (PARAMS[0], PARAMS[0] if same else PARAMS[1])
    builds = [build(engine, params, wait) for engine, params, wait in zip(engines, wanted, (0.0, later), strict=True)]
    ended = await asyncio.gather(*builds, return_exceptions=True)
    [refused] = [one for one in ended if isinstance(one, BaseException)]
    assert isinstance(refused, InvalidRequest)
    assert f"another build of the graph of [{index_name}] is running" in str(refused)
    [built] = [one for one in ended if isinstance(one, BuildProgress)]
    serving = await serving_graph(engines[0], index_name)
    assert serving is not None
    assert serving[0] == built.graph
    assert list(await graphs_of(engines[0], index_name)) == [built.graph]
    shown = await show_graph(engines[0], index_name)
    assert (shown.figures.documents, shown.dangling) == (COUNT, 0)


def build_in_a_process(url: str, index: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "es_ttc", "graph", "build", index, "--builder", "engine"]
    command += ["--engine", url, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


def half_a_graph(url: str, index: str, process: "subprocess.Popen[str]") -> None:
    """Wait until a build has begun to write."""

    async def look() -> bool:
        engine = await connect(EngineSettings(engine=url))
        try:
            names = [name for name, found in (await graphs_of(engine, index)).items() if not found.ready]
            for name in names:
                await engine.refresh(name)
            return any([await engine.count(name) for name in names])
        except EngineError:  # the index has been made this moment
            return False
        finally:
            await engine.close()

    while not asyncio.run(look()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


async def _filled(url: str, index: str) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        await make_index(engine, index)
        more = {f"e{at}": (f"e{at}", row) for at, row in enumerate(vectors(1000, seed=3))}
        await put(engine, index, more)


async def _documents(url: str, index: str) -> tuple[int, int]:
    async with connected(EngineSettings(engine=url)) as engine:
        shown = await show_graph(engine, index)
        await delete_graphs(engine, index)
        return shown.figures.documents, len(shown.others)


def test_a_build_that_was_killed_is_taken_up(opensearch_url: str, index_name: str) -> None:
    asyncio.run(_filled(opensearch_url, index_name))
    process = build_in_a_process(opensearch_url, index_name)
    half_a_graph(opensearch_url, index_name, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = build_in_a_process(opensearch_url, index_name)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["resumed"] > 0
    assert asyncio.run(_documents(opensearch_url, index_name)) == (COUNT + 1000, 0)

"""`es-ttc graph` as it is typed: what it prints, what it refuses, how it ends."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from es_ttc.cli.app import run
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.reranking.index_graph import graphs_of
from es_ttc.settings import EngineSettings
from tests.index_graph.conftest import SPEC, put, vectors

T = TypeVar("T")


def typed(*words: str) -> int:
    return run(["graph", *words])


def in_engine(url: str, work: Callable[[Engine], Awaitable[T]]) -> T:
    """Do something in an engine; a command runs an event loop of its own, in the main thread."""

    async def done() -> T:
        async with connected(EngineSettings(engine=url)) as engine:
            return await work(engine)

    return asyncio.run(done())


def test_a_graph_from_its_building_to_its_end(
    opensearch_url: str, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, where = index_name, ("--engine", opensearch_url)

    async def make(engine: Engine) -> None:
        await create_index(engine, corpus, SPEC, IndexOptions(shards=2, replicas=0))
        await put(engine, corpus, {f"d{at}": (f"h{at}", row) for at, row in enumerate(vectors(600))})

    in_engine(opensearch_url, make)
    assert typed("build", corpus, "--degree", "6", *where) == 0
    assert f"[{corpus}] has a graph of 600 documents (exact) in" in capsys.readouterr().out
    in_engine(opensearch_url, lambda engine: put(engine, corpus, {"new": ("new", vectors(1, seed=8)[0])}))
    assert typed("show", corpus, *where) == 0
    shown = capsys.readouterr().out
    assert "documents   600, edges" in shown
    assert (
        f"1 documents were written since, the index has 601 with vectors: run `es-ttc graph update {corpus}`" in shown
    )
    assert typed("update", corpus, *where, "--json") == 0
    mended = json.loads(capsys.readouterr().out)
    assert (mended["written"], mended["deleted"]) == (1, 0)
    assert typed("update", corpus, *where) == 0
    assert "nothing has changed" in capsys.readouterr().out
    assert typed("show", corpus, *where, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stale"], found["figures"]["documents"], found["meta"]["params"]["degree"]) == (False, 601, 6)
    assert typed("delete", corpus, *where) == 2  # nobody can be asked
    assert "needs --yes" in capsys.readouterr().err
    assert typed("delete", corpus, "--yes", *where) == 0
    assert in_engine(opensearch_url, lambda engine: graphs_of(engine, corpus)) == {}


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("build", "no-such-index"), 1, "there is no index [no-such-index]"),
        (("build", "a,b"), 1, "may stand for many indices"),
        (("update", "no-such-index"), 1, "there is no index [no-such-index]"),
    ],
)
def test_graph_refuses_invalid_options_in_one_sentence(
    opensearch_url: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, why: str
) -> None:
    assert run(["graph", *words, "--engine", opensearch_url]) == status
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1

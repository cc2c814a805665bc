"""A real `es-ttc attach` killed after each of its steps and run again; an engine killed under it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.feature_locations import Indices, contents_of
from es_ttc.index.mappings.indices import sides_of
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.judging.store import JUDGEMENTS_INDEX as JUDGEMENTS
from es_ttc.settings import EngineSettings
from tests.attach.conftest import MAPPING, SETTINGS, attach, corpus, put, wait_for
from tests.conftest import Outcome
from tests.serving.client import Reply, call, search
from tests.serving.relay import Passed, relay
from tests.serving.test_engine_faults import serving
from tests.support import forked
from tests.support.gateway import gateway_to
from tests.support.own_node import OwnNode

ON_ONE_ENGINE = True

T = TypeVar("T")
HIDDEN_TOO = {"expand_wildcards": "all"}
OPTIONS = ["--text-fields", "title,body", "--scales", "1,3,mean", "--max-tokens", "64", "--encoder", "minilm@onnx"]


async def until_it_is_through(engine: str, folder: Path, *arguments: str) -> list[str]:
    """Run a command again and again, killed right after its first change each time, until it ends by itself.

    Returns:
        The requests after which it was killed: method and last part of the path.
    """
    steps: list[str] = []
    killed_after: set[tuple[str, str]] = set()
    running: list[int] = []

    def pass_on_and_kill(request: Passed) -> Reply:
        kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        reply = call(engine, request.method, request.target, request.body or None, kept)
        path = request.target.partition("?")[0]
        last = path.rpartition("/")[2]
        changes = request.method in ("PUT", "DELETE") or last in ("_bulk", "_aliases")
        again = (request.method, path) in killed_after and last != "_bulk"  # which each run begins with
        if changes and not again and reply.status < 300 and running:
            killed_after.add((request.method, path))
            os.kill(running.pop(), signal.SIGKILL)
            steps.append(f"{request.method} {last if last.startswith('_') else ''}".strip())
        return reply

    with relay(engine) as passing:
        passing.before = pass_on_and_kill
        environment, log = {"HF_HUB_OFFLINE": "1", "ES_TTC_ENGINE": passing.url}, folder / "printed"
        while True:
            process = forked.command(arguments, folder, environment, log)
            running[:] = [process.pid or 0]
            await asyncio.to_thread(process.join, 120)
            if process.exitcode == 0:
                return steps
            assert process.exitcode == -signal.SIGKILL, log.read_text()
            assert len(steps) < 30, steps


async def test_attach_beside_another_attach_that_serves(
    engine: Engine, engine_url: str, shop: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    await attach(engine, shop, spec, encoder)
    before = await engine.request("GET", f"/{shop}")
    old = (await Indices.behind(engine, shop)).only().holder
    steps = await until_it_is_through(engine_url, tmp_path, "attach", shop, *OPTIONS, "--codec", "int8")
    # The index, documents of both shards, the checkpoint, the alias, the old index.
    assert steps[0] == "PUT"
    assert steps.count("POST _bulk") >= 2
    assert steps[-2:] == ["POST _aliases", "DELETE"]
    [side] = await sides_of(engine, shop)
    held = (await Indices.behind(engine, shop)).only()
    assert side.index == held.index != old.index
    assert held.spec == replace(spec, codec="int8")
    assert (await contents_of(engine, held)).states == {"ready": 19, "empty": 1}
    assert await engine.request("GET", f"/{shop}") == before


@pytest.mark.engine
def test_an_engine_that_is_killed_under_it_and_comes_back(
    own_node: OwnNode, tmp_path: Path, es_ttc: Callable[..., Outcome]
) -> None:
    asyncio.run(_with_engine(own_node.url, _make_shop))
    command = [sys.executable, "-m", "es_ttc", "attach", "shop", *OPTIONS, "--json", "--engine", own_node.url]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as attaching:
        wait_for(lambda: attaching.poll() is not None or len(asyncio.run(_with_engine(own_node.url, _sides))) > 0)
        time.sleep(0.3)
        own_node.kill()
        own_node.restart()
        out, _ = attaching.communicate(timeout=200)
    if attaching.returncode != 0:  # it may have met a call that is not repeated: it says so, and goes on when told
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        out = done.stdout
    assert json.loads(out)["indices"][0]["failed"] == 0
    documents, states = asyncio.run(_with_engine(own_node.url, _found))
    assert documents == 400
    assert states == {"ready": 19 * 20, "empty": 20}
    # Everything of every index goes on request, es-ttc's own indices among it; the user's documents stay.
    asyncio.run(_with_engine(own_node.url, lambda engine: put(engine, JUDGEMENTS, {"one": {"grade": 1}})))
    everything = ["detach", "--all", "--json", "--engine", own_node.url]
    asked = es_ttc(*everything)
    assert (asked.status, asked.out) == (2, "")
    assert "--yes" in asked.err
    told = json.loads(es_ttc(*everything, "--yes").out)
    assert "shop" in [each["index"] for each in told["indices"]]
    assert JUDGEMENTS in told["deleted"]
    left = asyncio.run(_with_engine(own_node.url, lambda engine: engine.request("GET", "/*", params=HIDDEN_TOO)))
    assert JUDGEMENTS not in left
    assert asyncio.run(_with_engine(own_node.url, _sides)) == []
    assert asyncio.run(_with_engine(own_node.url, lambda engine: engine.count("shop"))) == 400


@pytest.mark.engine
def test_an_engine_that_is_killed_under_encoding_on_demand_and_its_gateway(
    own_node: OwnNode, encoder: Encoder, es_ttc: Callable[..., Outcome]
) -> None:
    """Only what waited is lost: the next searches of the next gateway queue it again."""
    asyncio.run(_with_engine(own_node.url, lambda engine: _make_shop(engine, "stall", copies=8)))
    attached = json.loads(es_ttc("attach", "stall", "--on-demand", *OPTIONS, "--json", "--engine", own_node.url).out)
    assert [each["index"] for each in attached["indices"]] == ["stall"]

    def coverage(gateway: str) -> dict[str, int]:
        section = {"window_size": 160, "ttc": {"query_text": "a cat", "timeout": "60s"}}
        reply = search(gateway, "stall", {"query": {"match_all": {}}, "rescore": section})
        return {"encoded": 0, "queued": -1, **reply.json().get("ttc", {})}  # an error, while the engine starts

    with serving(own_node.url) as (process, gateway):
        assert coverage(gateway)["queued"] == 160
        wait_for(lambda: 0 < coverage(gateway)["encoded"] < 160)
        process.kill()
    with gateway_to(own_node.url, encoder, on_demand_share=0.5) as gateway:
        before = coverage(gateway)["encoded"]
        assert 0 < before < 160
        wait_for(lambda: coverage(gateway)["encoded"] > before)
        own_node.kill()
        own_node.restart()
        wait_for(lambda: coverage(gateway)["encoded"] == 160, 120)
    filled = json.loads(es_ttc("fill", "stall", "--json", "--engine", own_node.url).out)["indices"][0]
    assert {name: filled[name] for name in ("written", "unchanged", "failed", "removed")} == {
        "written": 0, "unchanged": 160, "failed": 0, "removed": 0
    }  # fmt: skip


async def _with_engine(url: str, work: Callable[[Engine], Awaitable[T]]) -> T:
    async with connected(EngineSettings(engine=url)) as engine:
        return await work(engine)


async def _make_shop(engine: Engine, shop: str = "shop", copies: int = 20) -> None:
    await engine.create_index(shop, {"settings": SETTINGS, "mappings": MAPPING})
    await put(engine, shop, {f"{name}-{n}": document for name, document in corpus().items() for n in range(copies)})


async def _sides(engine: Engine) -> list[str]:
    return [side.index for side in await sides_of(engine, "shop")]


async def _found(engine: Engine) -> tuple[int, dict[str, int]]:
    held = (await Indices.behind(engine, "shop")).only()
    await engine.refresh(held.index)
    return await engine.count("shop"), (await contents_of(engine, held)).states

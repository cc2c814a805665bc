"""A real `es-ttc attach` killed after each of its steps and run again; an engine killed under it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
from aiohttp import web

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach.feature_locations import contents_of, feature_location
from es_ttc.index.attach.side_index import serving_side, sides_of
from es_ttc.index.mappings.contents import contents
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.judging.store import INDEX as JUDGEMENTS
from es_ttc.settings import EngineSettings
from tests.attach.conftest import MAPPING, SETTINGS, attach, corpus, put, wait_for
from tests.attach.test_detach import state
from tests.support.own_node import OwnNode
from tests.support.servers import server_of

_NOT_PASSED_ON = ("host", "content-length", "transfer-encoding", "content-encoding")
_CHANGING_POSTS = ("_bulk", "_aliases")


@dataclass
class KillingRelay:
    """What the server did.

    Attributes:
        url: Its address.
        process: Who is killed, and how often that may happen still.
        steps: The requests after which it was killed: method and last part of the path.
    """

    url: str = ""
    process: asyncio.subprocess.Process | None = None
    steps: list[str] = field(default_factory=list)


@asynccontextmanager
async def killing_relay(engine_url: str) -> AsyncIterator[KillingRelay]:
    """Run the server on a free port; it kills :attr:`KillingRelay.process`, once after each step."""
    state = KillingRelay()
    killed_after: set[tuple[str, str]] = set()

    async def handle(request: web.Request) -> web.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON}
        url = f"{engine_url}{request.path_qs}"
        async with session.request(request.method, url, data=await request.read(), headers=headers) as answer:
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_PASSED_ON}
        last = request.path.rpartition("/")[2]
        changes = request.method in ("PUT", "DELETE") or last in _CHANGING_POSTS
        again = (request.method, request.path) in killed_after and last != "_bulk"  # which each run begins with
        if changes and not again and answer.status < 300 and state.process is not None:
            killed_after.add((request.method, request.path))
            state.process.kill()
            state.process = None
            state.steps.append(f"{request.method} {last if last.startswith('_') else ''}".strip())
        return web.Response(status=answer.status, body=content, headers=kept)

    async with aiohttp.ClientSession() as session, server_of(handle) as state.url:
        yield state


T = TypeVar("T")
HIDDEN_TOO = {"expand_wildcards": "all"}
OPTIONS = ["--text-fields", "title,body", "--scales", "1,3,mean", "--max-tokens", "64", "--encoder", "minilm@onnx"]


@pytest.fixture(scope="session")
def engine_url(opensearch_url: str) -> str:
    """One product: the steps are the same on both."""
    return opensearch_url


async def until_it_is_through(relay_to: str, folder: Path, *arguments: str) -> list[str]:
    """Run the command again and again, killed after its first change each time, until it ends by itself."""
    async with killing_relay(relay_to) as relay:
        while True:
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ES_TTC_ENGINE": relay.url}
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "es_ttc", *arguments),
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            relay.process = process
            _, err = await asyncio.wait_for(process.communicate(), 120)
            if process.returncode == 0:
                return relay.steps
            assert process.returncode == -9, err.decode()
            assert len(relay.steps) < 30, relay.steps


async def test_beside_another_attach_that_serves(
    engine: Engine, engine_url: str, shop: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    await attach(engine, shop, spec, encoder)
    before = await engine.request("GET", f"/{shop}")
    old = await serving_side(engine, shop)
    steps = await until_it_is_through(engine_url, tmp_path, "attach", shop, *OPTIONS, "--codec", "int8")
    # The index, documents of both shards, the checkpoint, the alias, the old index.
    assert steps[0] == "PUT"
    assert steps.count("POST _bulk") >= 2
    assert steps[-2:] == ["POST _aliases", "DELETE"]
    [side] = await sides_of(engine, shop)
    held = await feature_location(engine, shop)
    assert side == held.index != old
    assert held.spec == replace(spec, codec="int8")
    assert (await contents_of(engine, held)).states == {"ready": 19, "empty": 1}
    assert await engine.request("GET", f"/{shop}") == before


async def test_inside_and_out_again(engine: Engine, engine_url: str, shop: str, tmp_path: Path) -> None:
    before = await state(engine, shop)
    steps = await until_it_is_through(engine_url, tmp_path, "attach", shop, *OPTIONS, "--in-index")
    assert steps[:3] == ["PUT _mapping", "PUT", "PUT _settings"]
    assert steps.count("POST _bulk") >= 2
    held = await feature_location(engine, shop)
    assert not held.side
    await engine.refresh(shop)
    assert (await contents(engine, shop, held.spec)).states == {"ready": 19, "empty": 1}
    steps = await until_it_is_through(engine_url, tmp_path, "detach", shop, "--yes")
    assert steps[:2] == ["PUT _settings", "DELETE"]
    assert "PUT _mapping" in steps
    after = await state(engine, shop)
    del after["index"][shop]["mappings"]["properties"]["ttc"]
    assert after == before


@pytest.mark.engine
def test_an_engine_that_is_killed_under_it_and_comes_back(own_node: OwnNode, tmp_path: Path) -> None:
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
    everything = [*command[:3], "detach", "--all", "--json", "--engine", own_node.url]
    asked = subprocess.run(everything, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--yes" in asked.stderr
    told = json.loads(subprocess.check_output([*everything, "--yes"], cwd=tmp_path, timeout=60))
    assert "shop" in [each["index"] for each in told["indices"]]
    assert JUDGEMENTS in told["deleted"]
    left = asyncio.run(_with_engine(own_node.url, lambda engine: engine.request("GET", "/*", params=HIDDEN_TOO)))
    assert JUDGEMENTS not in left
    assert asyncio.run(_with_engine(own_node.url, _sides)) == []
    assert asyncio.run(_with_engine(own_node.url, lambda engine: engine.count("shop"))) == 400


async def _with_engine(url: str, work: Callable[[Engine], Awaitable[T]]) -> T:
    async with connected(EngineSettings(engine=url)) as engine:
        return await work(engine)


async def _make_shop(engine: Engine) -> None:
    await engine.create_index("shop", {"settings": SETTINGS, "mappings": MAPPING})
    await put(engine, "shop", {f"{name}-{n}": document for name, document in corpus().items() for n in range(20)})


async def _sides(engine: Engine) -> list[str]:
    return list(await sides_of(engine, "shop"))


async def _found(engine: Engine) -> tuple[int, dict[str, int]]:
    held = await feature_location(engine, "shop")
    await engine.refresh(held.index)
    return await engine.count("shop"), (await contents_of(engine, held)).states

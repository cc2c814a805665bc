"""Documents that any client writes: encoded once a version, enriched once a text, found by every method."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.encoding_record import encoding_job_id
from es_ttc.enrichment.jobs.encoding_run import LoadedEncoders, take_encoding_turn
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings, Settings
from tests.serving.client import Reply, call, search
from tests.support.jobs import Workplace, document, model_process, worker_at
from tests.support.kept import Kept

on_one_engine = pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
"""For what does not depend on the product."""
SECONDS = 60


@pytest.fixture(scope="module")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@pytest.fixture(scope="module")
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, max_tokens=64)


@pytest.fixture(scope="module")
def gateways(encoder: Encoder) -> Iterator[Kept[str]]:
    def gateway_to(engine: str) -> AbstractContextManager[str]:
        settings = GatewaySettings(engine=engine, port=0, default_timeout_ms=20_000)
        return running_gateway(settings, load=lambda _name, _folder: encoder)

    with Kept(gateway_to) as kept:
        yield kept


@pytest.fixture
def gateway(engine_url: str, gateways: Kept[str]) -> str:
    return gateways.of(engine_url)


@pytest.fixture
async def pipelines(engine: Engine, index_name: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes ingest pipelines with the index's name in theirs; afterwards all of those are deleted."""

    async def make(name: str, *processors: dict[str, Any]) -> str:
        await engine.request("PUT", f"/_ingest/pipeline/{index_name}-{name}", body={"processors": processors})
        return f"{index_name}-{name}"

    yield make
    await engine.request("PUT", f"/{index_name}*/_settings", body={"index.final_pipeline": "_none"})
    await engine.request("PUT", f"/{index_name}*/_settings", body={"index.default_pipeline": "_none"})
    await engine.request("DELETE", f"/_ingest/pipeline/*{index_name}*")


def settings_for(engine: Engine, index: str, **more: Any) -> Settings:
    return Settings(engine=engine.url, jobs_index=f"{index}-jobs", jobs_look_seconds=0.02, **more)


@asynccontextmanager
async def following(engine: Engine, settings: Settings, index: str, encoder: Encoder) -> AsyncIterator[None]:
    """Do what a worker does, in this process."""
    encoders = LoadedEncoders(settings, lambda _identity, _name: encoder)
    ends = False

    async def turns() -> None:
        while not ends:
            await take_encoding_turn(engine, settings, encoders, encoding_job_id(index), lambda: ends)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(turns())
    try:
        yield
    finally:
        ends = True
        await task


async def versions(engine: Engine, index: str) -> dict[str, tuple[int, str | None]]:
    """Return each document's `_version` and its state."""
    await engine.refresh(index)
    body = {"size": 1000, "version": True, "_source": False, "docvalue_fields": ["ttc.state"]}
    hits = (await engine.search(index, body))["hits"]["hits"]
    return {hit["_id"]: (hit["_version"], hit.get("fields", {}).get("ttc.state", [None])[0]) for hit in hits}


async def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until an awaited condition holds; return what it returned last."""
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)
    return found


async def settled(engine: Engine, settings: Settings, index: str) -> dict[str, tuple[int, str | None]]:
    """Wait until nothing is pending, and that nothing is written afterwards."""

    async def idle() -> bool:
        await engine.refresh(index)
        return (await commands.shown(engine, settings, encoding_job_id(index))).state == "idle"

    await until(idle)
    before = await versions(engine, index)
    await asyncio.sleep(0.3)
    assert await versions(engine, index) == before
    return before


def ask(gateway: str, index: str, text: str, method: str) -> Reply:
    """Search all documents, and rescore them."""
    section = {"window_size": 1000, "ttc": {"method": method, "query_text": text}}
    return search(gateway, index, {"size": 1000, "query": {"match_all": {}}, "rescore": section})


@pytest.mark.usefixtures("pipelines")
async def test_what_a_client_writes_is_found_by_every_method(
    engine: Engine,
    engine_url: str,
    gateway: str,
    index_name: str,
    spec: IndexSpec,
    encoder: Encoder,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One command, one worker; then plain HTTP. Every version is encoded once and enriched once."""
    await create_index(engine, index_name, spec, IndexOptions(shards=2, replicas=0))
    records = [{"_id": f"d{number}", **document(number)} for number in range(99)]
    await ingest(engine, index_name, Inputs([Documents(records)]), encoder, dead_letters=DeadLetterList())

    with model_process(tmp_path, seconds=0.0) as (model, _, asked):
        more = {"ES_TTC_ENCODER": "minilm@onnx", "ES_TTC_JOBS_LOOK_SECONDS": "0.1"}
        place = Workplace(engine_url, index_name, model, tmp_path, more=more)
        for name, value in place.environment.items():
            monkeypatch.setenv(name, value)
        made = await asyncio.to_thread(
            run, ["index", "pipeline", index_name, "--encode", "later", "--enrich", "--prompt", "base", "--json"]
        )
        printed = capfd.readouterr()
        assert made == 0, printed.err
        [followed] = json.loads(printed.out)["indices"]
        assert (followed["encoding"]["state"], followed["enrichment"]["reason"]) == ("idle", "")
        with worker_at(place) as worker:

            async def enriched() -> bool:
                await engine.refresh(index_name)
                return await engine.count(index_name, {"exists": {"field": "ttc.enriched"}}) == 100

            path = f"/{index_name}/_doc/d99"
            assert call(engine_url, "PUT", path, {"title": "The owl", "text": "An owl hunts. number99"}).status == 201

            async def found() -> bool:
                return ask(gateway, index_name, "a hunting owl", "spectral").ids[:1] == ["d99"]

            await until(found)
            for method in ("spectral", "blend"):
                reply = ask(gateway, index_name, "a hunting owl", method)
                assert reply.ids[0] == "d99"
                assert reply.json()["ttc"]["scored"] == 100
            await until(enriched)
            first = await versions(engine, index_name)
            # written and enriched; d99 was encoded in between
            assert first == {f"d{number}": (2, "ready") for number in range(99)} | {"d99": (3, "ready")}
            text = f"Observation number{7} of the river station{7 % 7}."
            assert call(engine_url, "PUT", path, {"title": "The trout", "text": text}).status == 200

            async def changed() -> bool:
                return ask(gateway, index_name, "a trout", "spectral").ids[:1] == ["d99"] and await enriched()

            await until(changed)
            assert (await versions(engine, index_name))["d99"] == (6, "ready")
            await asyncio.sleep(1.5)
            assert await versions(engine, index_name) == first | {"d99": (6, "ready")}
            assert worker.process.poll() is None
        assert len(asked.read_text().split()) == 101

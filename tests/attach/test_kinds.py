"""Kinds of indices that people have, and every storage of features beside them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from es_ttc.cli import attach as cli
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError
from es_ttc.index.attach import fill_attached
from es_ttc.index.attach.side_index import attach_beside
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import Settings
from tests.attach.conftest import MAPPING, attach, corpus, put, remove_traces, update
from tests.attach.test_beside import ask, scores


@pytest.fixture
async def rolled(engine: Engine, index_name: str) -> AsyncIterator[str]:
    """The shop's documents in a data stream; the tests' Elasticsearch has none, and gets an alias that rolls over."""
    settings = {"index": {"number_of_shards": 1, "number_of_replicas": 0}}
    if streams := await has_streams(engine):
        properties = {**MAPPING["properties"], "@timestamp": {"type": "date"}}  # type: ignore[dict-item]
        mappings = {**MAPPING, "properties": properties}
        body = {
            "index_patterns": [index_name],
            "data_stream": {},
            "priority": 500,
            "template": {"settings": settings, "mappings": mappings},
        }
        await engine.request("PUT", f"/_index_template/{index_name}", body=body)
    else:
        aliases = {index_name: {"is_write_index": True}}
        await engine.create_index(
            f"{index_name}-000001", {"settings": settings, "mappings": MAPPING, "aliases": aliases}
        )
    await append(engine, index_name, corpus())
    yield index_name
    backing = [source.index for source in await Index.behind(engine, index_name)]
    if streams:
        await engine.request("DELETE", f"/_data_stream/{index_name}")
        await engine.request("DELETE", f"/_index_template/{index_name}")
    for index in backing:
        await remove_traces(engine, index)
        if not streams:
            await engine.delete_index(index)


async def has_streams(engine: Engine) -> bool:
    try:
        await engine.request("GET", "/_data_stream")
    except EngineError:
        return False
    return True


async def append(engine: Engine, name: str, documents: dict[str, dict[str, Any]]) -> None:
    lines = [
        line
        for identifier, document in documents.items()
        for line in (
            orjson.dumps({"create": {"_id": identifier}}),
            orjson.dumps({"@timestamp": "2026-01-01T00:00:00Z", **document}),
        )
    ]
    assert all(item.ok for item in await engine.bulk(name, lines))
    await engine.refresh(name)


async def attach_all(engine: Engine, name: str, spec: IndexSpec, encoder: Encoder) -> None:
    for source in await Index.behind(engine, name):
        await attach_beside(engine, source, spec, encoder)


@pytest.mark.parametrize("storage", ["nested", "int8", "int4", "int2"])
async def test_every_storage_in_a_side_index(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder, storage: str
) -> None:
    await attach(engine, shop, replace(spec, codec="float16"), encoder)
    float16 = scores(ask(gateway, shop))
    chosen = replace(spec, **({"tokens": "nested"} if storage == "nested" else {"codec": storage}))  # type: ignore[arg-type]
    filled = await attach(engine, shop, chosen, encoder)
    assert (filled.carried + filled.written, filled.failed) == (20, 0)  # a coarser codec is made from float16
    reply = ask(gateway, shop)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    near = {"nested": 1e-3, "int8": 5e-3, "int4": 0.02, "int2": 0.08}[storage]
    assert scores(reply) == pytest.approx(float16, abs=near)
    await update(engine, shop, "d2", {"body": "Our cat drinks milk, every day and every night."})
    [filled] = await fill_attached(engine, shop, encoder)
    assert (filled.written, filled.failed) == (1, 0)
    assert ask(gateway, shop).json()["ttc"]["scored"] == 19


async def test_a_watching_fill_follows_what_is_written(
    engine_url: str,
    engine: Engine,
    shop: str,
    gateway: str,
    spec: IndexSpec,
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def loaded(*_: object) -> Encoder:
        return encoder

    monkeypatch.setattr(cli, "_encoder_of", loaded)
    monkeypatch.setattr(cli, "stop_on_sigterm", lambda: None)
    monkeypatch.setattr(cli, "_WATCH_SECONDS", 0.1)
    await attach(engine, shop, spec, encoder)
    watching = asyncio.create_task(cli._watch(Settings(engine=engine_url), shop))

    async def settled() -> None:
        """Wait until every document with text is scored, and none is stale."""
        async with asyncio.timeout(60):
            while True:
                assert not watching.done()
                ttc = (await asyncio.to_thread(ask, gateway, shop)).json()["ttc"]
                if ttc["scored"] == 19 and not ttc.get("stale"):
                    return
                await asyncio.sleep(0.1)

    try:
        await settled()
        await engine.request("DELETE", f"/{shop}/_doc/d3", params={"refresh": "true"})
        await update(engine, shop, "d2", {"body": "Our cat drinks milk, every day and every night."})
        await put(engine, shop, {"new": {"title": "The cat", "body": "It drinks milk."}})
        await settled()
        await update(engine, shop, "d4", {"body": "It changed once more."})
        await settled()
    finally:
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    assert "following" in capsys.readouterr().err

"""Encodes followed writes in this process as a worker does, and reads what came of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.encoding_turn import LoadedEncoders, take_encoding_turn
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.record import Job, encoding_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import Settings
from tests.serving.client import Reply, search

SECONDS = 120


def settings_for(engine: Engine, index: str, **more: Any) -> Settings:
    return Settings(engine=engine.url, jobs_index=f"{index}-jobs", **more)


@asynccontextmanager
async def following(engine: Engine, settings: Settings, index: str, encoder: Encoder) -> AsyncIterator[None]:
    """Do what a worker does, in this process."""
    store, encoders = JobStore(engine, settings.jobs_index), LoadedEncoders(settings, lambda _identity, _name: encoder)
    ends = False

    async def turns() -> None:
        while not ends:
            await take_encoding_turn(store, settings, encoders, encoding_job_id(index), lambda: ends)
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
        return (await commands.shown_job(engine, settings, encoding_job_id(index))).state == "idle"

    await until(idle)
    before = await versions(engine, index)
    await asyncio.sleep(0.3)
    assert await versions(engine, index) == before
    return before


def ask(gateway: str, index: str, text: str, method: str) -> Reply:
    """Search all documents, and rescore them."""
    section = {"window_size": 1000, "ttc": {"method": method, "query_text": text}}
    return search(gateway, index, {"size": 1000, "query": {"match_all": {}}, "rescore": section})


async def features_fit(engine: Engine, index: str, spec: IndexSpec) -> set[str]:
    """Return the documents whose content hash is that of their present text."""
    await engine.refresh(index)
    hits = (await engine.search(index, {"size": 1000, "docvalue_fields": ["ttc.hash"]}))["hits"]["hits"]
    fitting = set()
    for hit in hits:
        text, spans = compose(hit["_source"], spec.text_fields)
        if hit.get("fields", {}).get("ttc.hash") == [content_hash(text, spans, spec)]:
            fitting.add(hit["_id"])
    return fitting


async def searches(engine: Engine, index: str) -> int:
    """Return the number of queries that an index has served."""
    answer = await engine.request("GET", f"/{index}/_stats/search")
    return int(answer["indices"][index]["total"]["search"]["query_total"])


async def pipelines_of(engine: Engine, index: str) -> set[str]:
    """Return the names of the ingest pipelines with an index's name in theirs."""
    return set(await engine.request("GET", f"/_ingest/pipeline/*{index}*"))


async def enrich_all(engine: Engine, settings: Settings, job: Job) -> None:
    """Do what workers do until a job has nothing left, however slow the machine is."""
    store = JobStore(engine, settings.jobs_index)
    for partition in range(job.lanes):
        while (end := await take_turn(store, settings, None, job.id, partition)) is TurnEnd.TIME:
            pass
        assert end is TurnEnd.NOTHING_LEFT


async def remove_traces_like(engine: Engine, name: str) -> None:
    """Delete the side indices of a data stream's indices."""
    everywhere = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
    for found in await engine.request("GET", f"/ttc-*{name}*", params=everywhere):
        await engine.delete_index(found)

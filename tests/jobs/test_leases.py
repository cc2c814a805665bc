"""Leases, checkpoints and states of the job that encodes: several workers, pauses, deleted records."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.app import prepare_jobs
from es_ttc.enrichment.jobs.encoding_turn import LoadedEncoders, take_encoding_turn
from es_ttc.enrichment.jobs.following import follow, unfollow
from es_ttc.enrichment.jobs.record import EncodingCheckpoint, encoding_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from tests.conftest import PRODUCTS
from tests.serving.client import call
from tests.support.following import following, pipelines_of, searches, settings_for, settled, until, versions
from tests.support.jobs import document

pytestmark = pytest.mark.processors

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)


async def test_encoding_job_paused_resumed_and_cancelled_with_two_workers(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, pipelines: Callable[..., Any]
) -> None:
    await create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0))
    settings = settings_for(engine, index_name)
    final = await pipelines("final", {"set": {"field": "seen", "value": True}})
    await engine.request("PUT", f"/{index_name}/_settings", body={"index.final_pipeline": final})
    await follow(engine, settings, index_name, "later")
    job = encoding_job_id(index_name)
    encoders = LoadedEncoders(settings, lambda _identity, _name: encoder)

    async def turn() -> TurnEnd:
        return await take_encoding_turn(JobStore(engine, settings.jobs_index), settings, encoders, job, lambda: False)

    for number in range(5):
        call(engine.url, "PUT", f"/{index_name}/_doc/d{number}", document(number))
    await commands.pause(engine, settings, job)
    assert await turn() is TurnEnd.NOT_DUE
    await engine.refresh(index_name)
    assert (await commands.shown_job(engine, settings, job)).progress.pending == 5
    with pytest.raises(InvalidRequest, match="costs no tokens"):
        await commands.resume(engine, settings, job, tokens=5)
    with pytest.raises(InvalidRequest, match="es-ttc fill"):
        await commands.retry(engine, settings, job)
    assert (await commands.resume(engine, settings, job)).state == "running"
    async with following(engine, settings, index_name, encoder):
        await settled(engine, settings, index_name)
        assert await turn() is TurnEnd.NOT_DUE  # the other one has the lease

        async def quiet() -> bool:
            queries = await searches(engine, index_name)
            await asyncio.sleep(0.4)
            return await searches(engine, index_name) == queries

        await until(quiet)  # where nothing is written, nothing is searched
        await commands.pause(engine, settings, job)
        call(engine.url, "PUT", f"/{index_name}/_doc/late", document(9))
        await asyncio.sleep(0.6)
        call(engine.url, "PUT", f"/{index_name}/_doc/later", document(10))
        await asyncio.sleep(0.5)
        assert (await versions(engine, index_name))["later"] == (1, "pending")
    assert [each.job.id for each in await commands.listed(engine, settings)] == [job]
    assert (await commands.cancel(engine, settings, job)).state == "cancelled"
    with pytest.raises(InvalidRequest, match=f"es-ttc index pipeline {index_name} --encode later"):
        await commands.resume(engine, settings, job)
    await follow(engine, settings, index_name, "later")  # made again
    own = Inputs([Documents([{"_id": "own", **document(11)}])])
    async with following(engine, settings, index_name, encoder):
        await ingest(engine, index_name, own, encoder, dead_letters=DeadLetterList())
        found = await settled(engine, settings, index_name)
    assert found.pop("own") == (1, "ready")  # it came with its features, and the key
    assert set(found.values()) == {(2, "ready")}
    await unfollow(engine, settings.jobs_index, index_name)
    [source] = await Index.behind(engine, index_name)
    assert source.settings["index.final_pipeline"] == final
    assert await pipelines_of(engine, index_name) == {final}


@on_both
async def test_jobs_index_deleted_under_a_worker_is_not_made_again(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    settings = settings_for(engine, index_name)
    store = JobStore(engine, settings.jobs_index)
    await create_index(engine, index_name, spec)
    await follow(engine, settings, index_name, "later")
    job, lease = await store.encoding.get(encoding_job_id(index_name)), None
    lease = await store.leases.claim(job.id, 3, "another worker", 30)
    assert lease is not None
    async with following(engine, settings, index_name, encoder):
        await engine.request("PUT", f"/{index_name}/_doc/1", body={"text": "The cat."})
        await settled(engine, settings, index_name)
        await engine.delete_index(settings.jobs_index)
        await engine.request("PUT", f"/{index_name}/_doc/2", body={"text": "The dog."})
        await asyncio.sleep(0.5)
    assert not await engine.exists(settings.jobs_index)
    writes: list[Callable[[], Any]] = [
        lambda: store.leases.renew(lease, job.id, 30),
        lambda: store.leases.claim(job.id, 4, "another worker", 30),
        lambda: store.checkpoints.put(job.id, EncodingCheckpoint()),
    ]
    for write in writes:
        with pytest.raises(EngineError, match="was deleted"):
            await write()
        assert not await engine.exists(settings.jobs_index)
    assert await commands.listed(engine, settings, ()) == []
    # One that an earlier release has made again is named, and the command that makes the job repairs it.
    await engine.request("PUT", f"/{settings.jobs_index}/_doc/lease", body={"kind": "lease", "of": job.id})
    with pytest.raises(InvalidRequest, match="mapping"):
        await prepare_jobs(settings)
    with pytest.raises(InvalidRequest, match="mapping"):
        await commands.listed(engine, settings, ())
    await follow(engine, settings, index_name, "later")
    await prepare_jobs(settings)
    async with following(engine, settings, index_name, encoder):
        assert {state for _, state in (await settled(engine, settings, index_name)).values()} == {"ready"}
    await engine.request("PUT", f"/{settings.jobs_index}-2/_doc/x", body={"job": {"id": "someone's"}})
    with pytest.raises(InvalidRequest, match="mapping"):
        await JobStore(engine, f"{settings.jobs_index}-2").indices.prepare()
    await unfollow(engine, settings.jobs_index, index_name)


async def test_progress_after_a_lost_checkpoint_is_counted_from_the_index(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    settings = settings_for(engine, index_name)
    store, job = JobStore(engine, settings.jobs_index), encoding_job_id(index_name)
    await create_index(engine, index_name, spec)
    await follow(engine, settings, index_name, "later")
    async with following(engine, settings, index_name, encoder):
        for number in range(3):
            await engine.request("PUT", f"/{index_name}/_doc/{number}", body={"text": f"The cat {number}."})
        await settled(engine, settings, index_name)
    await store.checkpoints.put(job, (await store.checkpoints.get(job)).model_copy(update={"written": 1}))
    shown = (await commands.shown_job(engine, settings, job)).progress
    assert (shown.total, shown.done, shown.failed, shown.pending) == (3, 3, 0, 0)
    await unfollow(engine, settings.jobs_index, index_name)

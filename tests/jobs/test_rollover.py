"""Followed indices that are rolled over or deleted: the next index gets jobs of its own, a deleted one loses them."""

from contextlib import suppress
from pathlib import Path

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.encoding_turn import LoadedEncoders, take_encoding_turn
from es_ttc.enrichment.jobs.followed_jobs import start_next
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, unfollow
from es_ttc.enrichment.jobs.record import Budget, JobState, encoding_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.errors import EngineError
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.followed_writes import delete_follow_pipeline
from es_ttc.index.mappings.index import IndexOptions, create_index, index_body
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from tests.conftest import PRODUCTS
from tests.serving.client import call
from tests.support.following import ask, enrich_all, following, remove_traces_like, settings_for, settled
from tests.support.jobs import JobSetup
from tests.support.llm import scripted_model

pytestmark = pytest.mark.processors

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)


@on_both
async def test_rollover_new_index_is_followed(
    engine: Engine, index_name: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """After a rollover the new index gets a side index like the one before; a deleted one ends its job.

    On OpenSearch it is a data stream; the Elasticsearch of the tests has none, so there it is an alias.
    """
    streams = (await engine.capabilities()).product == "opensearch"
    name = f"{index_name}-stream"
    properties = {**{field: {"type": "text"} for field in spec.text_fields}, "@timestamp": {"type": "date"}}
    template = {
        "index_patterns": [name, f"{name}-0*"],
        **({"data_stream": {}} if streams else {}),
        "priority": 500,
        "template": {"settings": {"number_of_replicas": 0}, "mappings": {"properties": properties}},
    }
    settings = settings_for(engine, index_name)
    await engine.request("PUT", f"/_index_template/{name}", body=template)
    try:
        if streams:
            await engine.request("PUT", f"/_data_stream/{name}")
        else:
            await engine.create_index(f"{name}-000001", {"aliases": {name: {"is_write_index": True}}})

        def add(title: str) -> None:
            body = {"@timestamp": "2026-11-23T00:00:00Z", "title": title, "text": f"About {title}."}
            assert call(engine.url, "POST", f"/{name}/_doc?refresh=true", body).status == 201

        add("an owl")
        [first] = await Index.behind(engine, name)
        await attach_beside(engine, first, spec, encoder)
        [followed] = await follow(engine, settings, name, "later")
        assert (followed.encoding.job.index, followed.encoding.job.name) == (first.index, name)
        await engine.request("POST", f"/{name}/_rollover")
        add("a trout")
        store = JobStore(engine, settings.jobs_index)
        jobs = await start_next(store, await store.encoding.list(status=["running"]))
        assert len(jobs) == 2
        [second] = {job.index for job in jobs} - {first.index}
        async with following(engine, settings, second, encoder):
            await settled(engine, settings, second)
        reply = ask(gateway, name, "a fish", "spectral")
        assert reply.json()["ttc"]["scored"] == 2
        assert reply.json()["hits"]["hits"][0]["_source"]["title"] == "a trout"
        await engine.delete_index(first.index)
        assert [job.index for job in await start_next(store, jobs)] == [second]
        assert (await commands.shown_job(engine, settings, encoding_job_id(first.index))).state == "cancelled"
    finally:
        if streams:
            await engine.request("DELETE", f"/_data_stream/{name}")
        await engine.request("DELETE", f"/_index_template/{name}")
        await remove_traces_like(engine, name)


@pytest.mark.parametrize(
    ("template", "engine_url"),
    [
        ("of an index made by es-ttc", "opensearch"),
        ("of the first index as it is", "elasticsearch"),
    ],
    indirect=["engine_url"],
)
async def test_rollover_new_index_is_enriched(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path, template: str
) -> None:
    """The job of the new index is like that of the one before, also if an index template carries the pipeline over."""
    name = f"{index_name}-alias"
    body = index_body(spec, await engine.capabilities(), IndexOptions(shards=1, replicas=0))
    made = {"index_patterns": [f"{name}-0*"], "priority": 500, "template": body}
    await engine.request("PUT", f"/_index_template/{name}", body=made)
    async with scripted_model(lambda _: "snow, flood") as model:
        settings = JobSetup(engine.url, index_name, model.url, tmp_path).settings
        try:
            await engine.create_index(f"{name}-000001", {"aliases": {name: {"is_write_index": True}}})

            def add(title: str) -> None:
                document = {"@timestamp": "2026-11-23T00:00:00Z", "title": title, "text": f"About {title}."}
                reply = call(engine.url, "POST", f"/{name}/_doc?refresh=true", document)
                assert reply.status == 201, reply.body

            add("an owl")
            [first] = await Index.behind(engine, name)
            options = EnrichmentOptions(prompt="base", budget=Budget(tokens=77_000, cost=None))
            [followed] = await follow(engine, settings, name, "later", options)
            assert followed.enrichment is not None
            if template == "of the first index as it is":
                [first] = await Index.behind(engine, name)
                carried = {"index.final_pipeline": first.settings["index.final_pipeline"]}
                mappings = {key: first.mapping[key] for key in ("_meta", "_source", "properties")}
                made["template"] = {"settings": {**body["settings"], **carried}, "mappings": mappings}
                await engine.request("PUT", f"/_index_template/{name}", body=made)
            await engine.request("POST", f"/{name}/_rollover")
            add("a trout")
            store = JobStore(engine, settings.jobs_index)
            jobs = await start_next(store, await store.encoding.list(status=["running"]))
            [second] = {job.index for job in jobs} - {first.index}
            async with following(engine, settings, second, encoder):
                await settled(engine, settings, second)
            [source] = await Index.behind(engine, second)
            assert source.settings["index.final_pipeline"].endswith(second)
            job = await store.enrichment.get(f"enrich-{second}")
            assert (job.index, job.budget, job.plan) == (second, options.budget, followed.enrichment.job.plan)
            await enrich_all(engine, settings, job)
            await engine.refresh(second)
            assert await engine.count(second, {"match": {"ttc.enrichment": "flood"}}) == 1
            await engine.delete_index(first.index)
            await delete_follow_pipeline(engine, first.index)
            add("a cat")  # the pipeline of the first index is not needed
            assert [job.index for job in await start_next(store, jobs)] == [second]
            assert (await store.enrichment.get(f"enrich-{first.index}")).status == "cancelled"
            assert (await store.enrichment.get(job.id)).status == "running"
            assert await unfollow(engine, settings.jobs_index, name)
        finally:
            for index in await engine.request("GET", f"/{name}-0*", params={"ignore_unavailable": "true"}):
                await engine.delete_index(index)
            await engine.request("DELETE", f"/_index_template/{name}")
            with suppress(EngineError):  # there may be none
                await engine.request("DELETE", f"/_ingest/pipeline/*{name}*")


async def test_encoding_job_of_a_deleted_index_is_cancelled(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    settings = settings_for(engine, index_name)
    await create_index(engine, index_name, spec)
    await follow(engine, settings, index_name, "later")
    await engine.delete_index(index_name)
    encoders = LoadedEncoders(settings, lambda _identity, _name: encoder)
    with suppress(EngineError):
        await take_encoding_turn(
            JobStore(engine, settings.jobs_index), settings, encoders, encoding_job_id(index_name), lambda: False
        )
    shown = await commands.shown_job(engine, settings, encoding_job_id(index_name))
    assert (shown.job.status, shown.job.reason) == (JobState.CANCELLED, "its index was deleted")
    assert await commands.listed(engine, settings, [JobState.RUNNING]) == []

"""Writes by any client through ingest pipelines: each version is encoded once, whatever pipelines the index has."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.encoding_turn import LoadedEncoders
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, unfollow
from es_ttc.enrichment.jobs.record import encoding_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.proposals import relevance
from es_ttc.errors import ConfigurationError, InvalidRequest
from es_ttc.index.attach import attach_beside
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import Settings
from tests.conftest import PRODUCTS
from tests.serving.client import call
from tests.support.following import ask, features_fit, following, settings_for, settled, until, versions
from tests.support.jobs import JobSetup, document, model_process, worker_at

pytestmark = pytest.mark.processors

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)


@pytest.mark.parametrize("engine_url", ["elasticsearch"], indirect=True)  # test_workers.py has the other product
@pytest.mark.usefixtures("pipelines")
async def test_worker_documents_written_by_http_are_found_by_every_method(
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
        more = {"ES_TTC_ENCODER": "minilm@onnx"}
        job_setup = JobSetup(engine_url, index_name, model, tmp_path, more=more)
        for name, value in job_setup.environment.items():
            monkeypatch.setenv(name, value)
        made = await asyncio.to_thread(
            run, ["index", "pipeline", index_name, "--encode", "later", "--enrich", "--prompt", "base", "--json"]
        )
        printed = capfd.readouterr()
        assert made == 0, printed.err
        [followed] = json.loads(printed.out)["indices"]
        assert (followed["encoding"]["state"], followed["enrichment"]["reason"]) == ("idle", "")
        with worker_at(job_setup) as worker:

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
                # A document that the worker rewrites between the first pass and the search for candidates counts twice.
                assert reply.json()["ttc"]["scored"] >= 100
                assert len(set(reply.ids)) == len(reply.ids)
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


@on_both
async def test_worker_every_kind_of_write_is_encoded_once(
    engine: Engine, index_name: str, gateway: str, spec: IndexSpec, encoder: Encoder, pipelines: Callable[..., Any]
) -> None:
    """Whole documents, partial updates, scripts and copies, behind pipelines of the user's own."""
    await create_index(engine, index_name, spec, IndexOptions(shards=2, replicas=0))
    stamped = {"set": {"field": "seen", "value": "by the default pipeline"}}
    default = await pipelines("default", stamped)
    final = await pipelines("final", {"append": {"field": "text", "value": ["At the end."]}})
    asked = await pipelines("asked", {"set": {"field": "title", "value": "By a pipeline"}})
    await engine.request(
        "PUT", f"/{index_name}/_settings", body={"index.default_pipeline": default, "index.final_pipeline": final}
    )
    settings = settings_for(engine, index_name)
    [followed] = await follow(engine, settings, index_name, "later")
    [again] = await follow(engine, settings, index_name, "now")  # the key and the user's pipeline stay
    assert again.index.options.key == followed.index.options.key != ""
    url, forged = engine.url, {"state": "ready", "hash": "0" * 32, "encoder": spec.encoder.key, "key": "0" * 32}

    def write(method: str, path: str, body: Any) -> None:
        reply = call(url, method, f"/{index_name}{path}", body)
        assert reply.status in (200, 201), reply.body
        assert not reply.json().get("errors"), reply.body

    def text(name: str) -> dict[str, Any]:
        return {"title": name, "text": f"About {name}."}

    async with following(engine, settings, index_name, encoder):
        write("PUT", "/_doc/doc", text("doc"))
        write("PUT", "/_create/create", text("create"))
        write("PUT", "/_doc/asked?pipeline=" + asked, text("asked"))
        write("PUT", "/_doc/none?pipeline=_none", text("none"))
        write("PUT", "/_doc/forged", text("forged") | {"ttc": forged, "ttc.state": "ready"})
        write("PUT", "/_doc/odd", text("odd") | {"ttc": [forged, 7]})
        write("PUT", "/_doc/empty?pipeline=_none", {"price": 1})
        names = ("update", "script", "bulk update", "bulk upsert", "by query")
        write("POST", "/_bulk", [line for name in names for line in ({"index": {"_id": name}}, text(name))])
        before = await settled(engine, settings, index_name)
        assert before.pop("empty") in ((2, "ready"), (2, "empty"))  # the user's final pipeline gives it a text
        assert before == dict.fromkeys(before, (2, "ready"))
        write("POST", "/_update/update", {"doc": {"text": "Changed."}})
        write("POST", "/_update/script", {"script": "ctx._source.text = 'Changed.'"})
        write("POST", "/_update/upsert", {"doc": text("upsert"), "doc_as_upsert": True})
        write(
            "POST",
            "/_bulk",
            [
                {"update": {"_id": "bulk update"}},
                {"doc": {"text": "Changed."}},
                {"update": {"_id": "bulk upsert"}},
                {"doc": {"text": "Changed."}, "doc_as_upsert": True},
                {"update": {"_id": "bulk script"}},
                {"script": "ctx._source.text = 'Changed.'", "upsert": text("bulk script")},
            ],
        )
        query = {"query": {"ids": {"values": ["by query"]}}, "script": "ctx._source.text = 'Changed.'"}
        write("POST", "/_update_by_query?refresh=true", query)
        assert call(url, "DELETE", f"/{index_name}/_doc/create").status == 200
        after = await settled(engine, settings, index_name)
        changed = ("update", "script", "bulk update", "bulk upsert", "by query")
        expected = {name: (2, "ready") for name in before if name != "create"} | dict.fromkeys(changed, (4, "ready"))
        expected |= {"upsert": (2, "ready"), "bulk script": (2, "ready")}
        assert {name: found for name, found in after.items() if name != "empty"} == expected
        copied = f"{index_name}-copy"
        await create_index(engine, copied, spec, IndexOptions(shards=1, replicas=0))
        await follow(engine, settings, copied, "later")
        body = {"source": {"index": index_name}, "dest": {"index": copied}}
        await engine.request("POST", "/_reindex", params={"refresh": "true"}, body=body)
        async with following(engine, settings, copied, encoder):
            assert set((await settled(engine, settings, copied)).values()) <= {(2, "ready"), (2, "empty")}
        assert await features_fit(engine, copied, spec) == after.keys()
    assert await features_fit(engine, index_name, spec) == after.keys()
    sources = {hit["_id"]: hit["_source"] for hit in (await engine.search(index_name, {"size": 99}))["hits"]["hits"]}
    assert sources["asked"] == {"title": "By a pipeline", "text": ["About asked.", "At the end."]}
    assert sources["doc"]["seen"] == "by the default pipeline"
    assert "seen" not in sources["none"]
    scored = ask(gateway, index_name, "changed", "blend").json()["ttc"]["scored"]
    assert scored == len(after) - (after["empty"][1] == "empty")


@on_both
async def test_follow_attached_index_encodes_changes_and_unfollow_restores_it(
    engine: Engine, index_name: str, gateway: str, spec: IndexSpec, encoder: Encoder, pipelines: Callable[..., Any]
) -> None:
    """An index that people already use: changed and deleted documents, and the way back."""
    final = await pipelines("final", {"set": {"field": "seen", "value": True}})
    properties = {name: {"type": "text"} for name in spec.text_fields}
    body = {
        "settings": {"number_of_shards": 2, "number_of_replicas": 0, "index.final_pipeline": final},
        "mappings": {"properties": properties},
    }
    await engine.create_index(index_name, body)
    url, settings = engine.url, settings_for(engine, index_name)
    for name in ("same", "changed", "gone", "price"):
        call(url, "PUT", f"/{index_name}/_doc/{name}", {"title": name, "text": f"About {name}."})
    [source] = await Index.behind(engine, index_name)
    await attach_beside(engine, source, spec, encoder)
    [followed] = await follow(engine, settings, index_name, "later")
    assert (followed.index.pipeline, followed.index.options.key) == (None, "")
    job = encoding_job_id(index_name)
    async with following(engine, settings, index_name, encoder):
        await settled(engine, settings, index_name)
        first = await versions(engine, index_name)
        call(url, "PUT", f"/{index_name}/_doc/new", {"title": "An owl", "text": "It hunts."})
        lines = [{"update": {"_id": "changed"}}, {"doc": {"text": "A trout swims."}}]
        assert call(url, "POST", f"/{index_name}/_bulk", lines).status == 200
        call(url, "POST", f"/{index_name}/_update/price", {"doc": {"price": 3}})
        call(url, "DELETE", f"/{index_name}/_doc/gone")
        after = await settled(engine, settings, index_name)
    assert after["same"] == first["same"]
    assert after["new"][0] == 1
    assert after["changed"][0] == first["changed"][0] + 1
    reply = ask(gateway, index_name, "a fish", "spectral")
    assert (reply.ids[0], reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == ("changed", 4, None)
    shown = await commands.shown_job(engine, settings, job)
    assert shown.progress.done == 4
    assert (
        await JobStore(engine, settings.jobs_index).checkpoints.get(job)
    ).written == 2  # a write of a price is not encoded
    [side] = await engine.mapping(f"ttc-side-{index_name}")
    await engine.refresh(side)
    assert await engine.count(side, {"exists": {"field": "ttc.id"}}) == 4
    assert shown.as_dict()["progress"]["removed"] == 1
    assert await unfollow(engine, settings.jobs_index, index_name)
    assert not await unfollow(engine, settings.jobs_index, index_name)
    assert (await commands.shown_job(engine, settings, job)).state == "cancelled"
    [source] = await Index.behind(engine, index_name)
    assert source.settings["index.final_pipeline"] == final


async def test_follow_index_without_features_is_refused_and_unchanged(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    settings = settings_for(engine, index_name)
    with pytest.raises(InvalidRequest, match=f"there is no index \\[{index_name}\\]"):
        await follow(engine, settings, index_name, "later")
    await engine.create_index(index_name, {"mappings": {"properties": {"text": {"type": "text"}}}})
    with pytest.raises(InvalidRequest, match="es-ttc attach"):
        await follow(engine, settings, index_name, "later")
    [source] = await Index.behind(engine, index_name)
    await attach_beside(engine, source, replace(spec, text_fields=("text",)), encoder)
    with pytest.raises(InvalidRequest, match=r"leave out --plugin"):
        await follow(engine, settings, index_name, "later", plugin_timeout="30s")
    with pytest.raises(InvalidRequest, match="--enrich"):
        await follow(engine, settings, index_name, "later", EnrichmentOptions())
    [side] = (await engine.mapping(f"ttc-side-{index_name}")).values()
    assert "writes" not in side["_meta"]["ttc"]
    assert not await engine.exists(settings.jobs_index)
    for side_name in await engine.mapping(f"ttc-side-{index_name}"):
        await engine.delete_index(side_name)


async def test_follow_without_plugin_is_refused_before_any_change(
    engine: Engine, index_name: str, spec: IndexSpec
) -> None:
    settings = settings_for(engine, index_name)
    await create_index(engine, index_name, spec)
    before = await engine.mapping(index_name)
    with pytest.raises(ConfigurationError, match=r"\[ttc\].*es-ttc plugin"):
        await follow(engine, settings, index_name, "now", EnrichmentOptions(), plugin_timeout="30s")
    assert await engine.mapping(index_name) == before
    assert not await engine.exists(settings.jobs_index)


async def test_worker_loads_the_encoder_of_the_features_unless_another_is_configured(
    spec: IndexSpec, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ES_TTC_ENCODER", raising=False)
    names: list[str | None] = []

    def load(identity: EncoderIdentity, name: str | None, **_: Any) -> Encoder:
        names.append(name)
        return encoder

    monkeypatch.setattr(relevance, "load_encoder_for", load)
    plan: Any = SimpleNamespace(min_similarity=0.3)
    target: Any = SimpleNamespace(spec=spec)
    for settings in (Settings(cache_dir=tmp_path), Settings(cache_dir=tmp_path, encoder="minilm")):
        LoadedEncoders(settings, load).of(spec.encoder)
        await relevance.phrase_relevance(plan, target, settings)
    assert names == [None, None, "minilm", "minilm"]

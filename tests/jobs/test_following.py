"""Documents that any client writes: encoded once a version, enriched once a text, found by every method."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from es_ttc.cli.app import run
from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder, EncoderIdentity
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, encoding_turn, submission
from es_ttc.enrichment.jobs.app import prepare_jobs
from es_ttc.enrichment.jobs.encoding_turn import LoadedEncoders, take_encoding_turn
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.enrichment_work import is_continuous_due
from es_ttc.enrichment.jobs.followed_jobs import start_next
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, unfollow
from es_ttc.enrichment.jobs.record import Budget, EncodingCheckpoint, Job, JobState, encoding_job_id
from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.enrichment.proposals import relevance
from es_ttc.errors import ConfigurationError, EngineError, InvalidRequest
from es_ttc.index.attach import attach_beside
from es_ttc.index.attach.followed_writes import delete_follow_pipeline
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index, index_body
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import Settings
from tests.conftest import PRODUCTS
from tests.serving.client import Reply, call, search
from tests.support.gateway import gateway_to
from tests.support.jobs import Workplace, document, model_process, worker_at
from tests.support.kept import Kept
from tests.support.llm import scripted_model

pytestmark = pytest.mark.processors

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)
SECONDS = 120


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than workers do."""
    monkeypatch.setattr(encoding_turn, "LOOK_SECONDS", 0.02)


@pytest.fixture(scope="module")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@pytest.fixture(scope="module")
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, max_tokens=64)


@pytest.fixture(scope="module")
def gateways(encoder: Encoder) -> Iterator[Kept[str]]:
    with Kept(lambda engine: gateway_to(engine, encoder)) as kept:
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
    for setting in ("final_pipeline", "default_pipeline"):
        await engine.request("PUT", f"/{index_name}*/_settings", body={f"index.{setting}": "_none"})
    with suppress(EngineError):  # there may be none
        await engine.request("DELETE", f"/_ingest/pipeline/*{index_name}*")


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


@pytest.mark.parametrize("engine_url", ["elasticsearch"], indirect=True)  # test_workers.py has the other product
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
        more = {"ES_TTC_ENCODER": "minilm@onnx"}
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


@on_both
async def test_every_kind_of_write_is_encoded_once(
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
async def test_attached_indices_are_followed_too(
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
    shown = await commands.shown(engine, settings, job)
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
    assert (await commands.shown(engine, settings, job)).state == "cancelled"
    [source] = await Index.behind(engine, index_name)
    assert source.settings["index.final_pipeline"] == final


async def test_pause_resume_cancel_and_two_workers(
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
    assert (await commands.shown(engine, settings, job)).progress.pending == 5
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
            await asyncio.sleep(1)
            return await searches(engine, index_name) == queries

        await until(quiet)  # where nothing is written, nothing is searched
        await commands.pause(engine, settings, job)
        call(engine.url, "PUT", f"/{index_name}/_doc/late", document(9))
        await asyncio.sleep(2.5)
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


async def searches(engine: Engine, index: str) -> int:
    """Return the number of queries that an index has served."""
    answer = await engine.request("GET", f"/{index}/_stats/search")
    return int(answer["indices"][index]["total"]["search"]["query_total"])


async def pipelines_of(engine: Engine, index: str) -> set[str]:
    """Return the names of the ingest pipelines with an index's name in theirs."""
    return set(await engine.request("GET", f"/_ingest/pipeline/*{index}*"))


async def test_without_a_model_the_job_that_enriches_waits_and_says_why(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path, pipelines: Callable[..., Any]
) -> None:
    await create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0))
    settings = settings_for(engine, index_name)
    [made] = await follow(engine, settings, index_name, "later", EnrichmentOptions())
    assert made.enrichment is not None
    job = made.enrichment.job
    assert (made.enrichment.state, job.id) == ("paused", f"enrich-{index_name}")
    assert job.reason == (
        "no language model is configured: set ES_TTC_LLM_URL (llm_url) to an OpenAI-compatible endpoint such as "
        f"http://127.0.0.1:8000/v1; then `es-ttc jobs resume {job.id}`"
    )
    with pytest.raises(ConfigurationError, match="no language model is configured"):
        await commands.resume(engine, settings, job.id)
    with model_process(tmp_path) as (model, _, __):
        place = Workplace(engine.url, index_name, model, tmp_path)
        resumed = await commands.resume(engine, place.settings, job.id, tokens=1000)
        assert isinstance(resumed.job, Job)
        assert (resumed.state, resumed.job.plan.model, resumed.job.plan.prompt) == ("idle", "scripted", "base")
        [again] = await follow(engine, place.settings, index_name, "later", EnrichmentOptions("base"))
        assert again.enrichment is not None
        assert (again.enrichment.job.budget.tokens, again.enrichment.job.refresh) == (1000, 0.5)
    [without] = await follow(engine, settings, index_name, "later")
    assert without.enrichment is None
    assert (await commands.shown(engine, settings, job.id)).state == "cancelled"
    await unfollow(engine, settings.jobs_index, index_name)


@pytest.mark.usefixtures("pipelines")
async def test_proposals_are_filtered_again_when_the_corpus_has_grown(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    """A phrase that was rare becomes frequent; the model is not asked again. Afterwards nothing is searched."""
    await create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0))

    async def write(first: int, count: int, text: str) -> None:
        documents = [{"_id": f"d{number}", "title": f"Report {number}", "text": text} for number in range(first, count)]
        await ingest(engine, index_name, Inputs([Documents(documents)]), encoder, dead_letters=DeadLetterList())

    await write(0, 3, "The river rises.")
    await write(3, 4, "There is snow.")
    async with scripted_model(lambda _: "snow, flood") as model:
        with EmbeddedRedis() as own:
            redis = Redis.from_url(own.url)
            settings = Workplace(engine.url, index_name, model.url, tmp_path).settings
            await follow(engine, settings, index_name, "later")
            await add_enrichment(engine, index_name)
            request = EnrichmentOptions().request(index_name)
            request = request.model_copy(update={"tau": 0.3, "lanes": 1})
            made = await submission.submit_continuous(engine, settings, request, f"enrich-{index_name}", frozenset())
            store = JobStore(engine, settings.jobs_index)

            async def sweep() -> Job:
                """Do what the sweeps of workers do, until none finds anything to do."""
                for _ in range(5):
                    job = await store.enrichment.get(made.job.id)
                    while await is_continuous_due(store, redis, job):
                        assert await take_turn(store, settings, None, job.id, 0) is TurnEnd.NOTHING_LEFT
                return await store.enrichment.get(made.job.id)

            async def phrases() -> dict[str, list[str]]:
                await engine.refresh(index_name)
                body = {"size": 100, "_source": False, "stored_fields": ["ttc.enrichment"]}
                hits = (await engine.search(index_name, body))["hits"]["hits"]
                return {hit["_id"]: hit.get("fields", {}).get("ttc.enrichment", []) for hit in hits}

            first = await sweep()
            assert (first.filtered, first.plan.refreshed, len(model.asked)) == (4, 0, 4)
            assert await phrases() == {"d3": ["flood"], **{f"d{number}": ["snow", "flood"] for number in range(3)}}
            queries = await searches(engine, index_name)
            assert not await is_continuous_due(store, redis, first)
            assert await searches(engine, index_name) == queries
            await write(4, 5, "There is snow.")
            assert (await sweep()).plan.refreshed == 0  # 5 documents are not yet half as many again
            await write(5, 6, "There is snow.")
            grown = await sweep()
            assert (grown.filtered, grown.plan.refreshed, len(model.asked)) == (6, 1, 6)
            assert await phrases() == {f"d{number}": ["flood"] for number in range(6)}
            assert await engine.count(index_name, {"term": {"ttc.enriched": grown.plan.key}}) == 6
            shown = await commands.shown(engine, settings, grown.id)
            assert (shown.state, shown.progress.done, shown.progress.pending) == ("idle", 6, 0)
            await redis.aclose()
    await unfollow(engine, settings.jobs_index, index_name)


async def test_what_cannot_be_followed_is_refused_and_left_as_it_was(
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
    with pytest.raises(InvalidRequest, match=r"leave out --enrich, or make an index with"):
        await follow(engine, settings, index_name, "later", EnrichmentOptions())
    [side] = (await engine.mapping(f"ttc-side-{index_name}")).values()
    assert "writes" not in side["_meta"]["ttc"]
    assert not await engine.exists(settings.jobs_index)
    for side_name in await engine.mapping(f"ttc-side-{index_name}"):
        await engine.delete_index(side_name)


async def test_a_plugin_that_is_not_there_is_named_before_anything_changes(
    engine: Engine, index_name: str, spec: IndexSpec
) -> None:
    settings = settings_for(engine, index_name)
    await create_index(engine, index_name, spec)
    before = await engine.mapping(index_name)
    with pytest.raises(ConfigurationError, match=r"has no ingest processor \[ttc\]: install the es-ttc plugin"):
        await follow(engine, settings, index_name, "now", EnrichmentOptions(), plugin_timeout="30s")
    assert await engine.mapping(index_name) == before
    assert not await engine.exists(settings.jobs_index)


@on_both
async def test_the_next_index_is_followed_too(
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
        assert (await commands.shown(engine, settings, encoding_job_id(first.index))).state == "cancelled"
    finally:
        if streams:
            await engine.request("DELETE", f"/_data_stream/{name}")
        await engine.request("DELETE", f"/_index_template/{name}")
        await remove_traces_like(engine, name)


async def enrich_all(engine: Engine, settings: Settings, job: Job) -> None:
    """Do what workers do until a job has nothing left, however slow the machine is."""
    store = JobStore(engine, settings.jobs_index)
    for partition in range(job.lanes):
        while (end := await take_turn(store, settings, None, job.id, partition)) is TurnEnd.TIME:
            pass
        assert end is TurnEnd.NOTHING_LEFT


@pytest.mark.parametrize(
    ("template", "engine_url"),
    [
        ("of an index made by es-ttc", "opensearch"),
        ("of the first index as it is", "elasticsearch"),
    ],
    indirect=["engine_url"],
)
async def test_the_next_index_is_enriched_too(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path, template: str
) -> None:
    """The job of the new index is like that of the one before, also if an index template carries the pipeline over."""
    name = f"{index_name}-alias"
    body = index_body(spec, await engine.capabilities(), IndexOptions(shards=1, replicas=0))
    made = {"index_patterns": [f"{name}-0*"], "priority": 500, "template": body}
    await engine.request("PUT", f"/_index_template/{name}", body=made)
    async with scripted_model(lambda _: "snow, flood") as model:
        settings = Workplace(engine.url, index_name, model.url, tmp_path).settings
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


async def remove_traces_like(engine: Engine, name: str) -> None:
    """Delete the side indices of a data stream's indices."""
    everywhere = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
    for found in await engine.request("GET", f"/ttc-*{name}*", params=everywhere):
        await engine.delete_index(found)


@on_both
async def test_records_that_are_deleted_under_a_worker_do_not_come_back(
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
        await asyncio.sleep(1)
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
    with pytest.raises(InvalidRequest, match="has not the mapping"):
        await prepare_jobs(settings)
    with pytest.raises(InvalidRequest, match="has not the mapping"):
        await commands.listed(engine, settings, ())
    await follow(engine, settings, index_name, "later")
    await prepare_jobs(settings)
    async with following(engine, settings, index_name, encoder):
        assert {state for _, state in (await settled(engine, settings, index_name)).values()} == {"ready"}
    await engine.request("PUT", f"/{settings.jobs_index}-2/_doc/x", body={"job": {"id": "someone's"}})
    with pytest.raises(InvalidRequest, match="has not the mapping"):
        await JobStore(engine, f"{settings.jobs_index}-2").indices.prepare()
    await unfollow(engine, settings.jobs_index, index_name)


async def test_counts_are_those_of_the_index_and_not_of_a_worker_that_was_killed(
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
    shown = (await commands.shown(engine, settings, job)).progress
    assert (shown.total, shown.done, shown.failed, shown.pending) == (3, 3, 0, 0)
    await unfollow(engine, settings.jobs_index, index_name)


async def test_workers_load_the_encoder_of_the_features_unless_another_is_chosen(
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


async def test_a_deleted_index_ends_its_job(engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder) -> None:
    settings = settings_for(engine, index_name)
    await create_index(engine, index_name, spec)
    await follow(engine, settings, index_name, "later")
    await engine.delete_index(index_name)
    encoders = LoadedEncoders(settings, lambda _identity, _name: encoder)
    with suppress(EngineError):
        await take_encoding_turn(
            JobStore(engine, settings.jobs_index), settings, encoders, encoding_job_id(index_name), lambda: False
        )
    shown = await commands.shown(engine, settings, encoding_job_id(index_name))
    assert (shown.job.status, shown.job.reason) == (JobState.CANCELLED, "its index was deleted")
    assert await commands.listed(engine, settings, [JobState.RUNNING]) == []

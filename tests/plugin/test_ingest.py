"""The ingest processor: documents that any client writes get what `es-ttc ingest` writes, or are said to wait."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect, connected
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, unfollow
from es_ttc.enrichment.jobs.record import encoding_job_id
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import fill_attached
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.ingest_pipeline import add_pipeline, pipeline_name, processor
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.settings import EngineSettings
from tests.plugin.conftest import DOC_VALUES, Plugged
from tests.serving.client import Reply, call, search
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT, corpus, in_memory, ttc_rescore
from tests.support.following import enrich_all, features_fit, following, settled
from tests.support.jobs import JobSetup
from tests.support.llm import scripted_model
from tests.support.plugin import NOWHERE

INDEX = "written-by-anyone"


OPTIONS: dict[str, dict[str, Any]] = {
    "pending": {},
    "wait": {"wait": True},
    "strict": {"wait": True, "on_error": "fail"},
}


@pytest.fixture(autouse=True)
def pipelines(plugged: Plugged) -> None:
    """Pipelines without a word about what an index carries; each works for any index."""
    if call(plugged.url, "GET", "/_ingest/pipeline/strict").status == 200:
        return
    for name, options in OPTIONS.items():
        body = {"processors": [{"set": {"field": "stamped", "value": "{{_ingest.timestamp}}"}}, {"ttc": options}]}
        assert call(plugged.url, "PUT", f"/_ingest/pipeline/{name}", body).status == 200


def with_engine(plugged: Plugged, act: Callable[[Engine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with connected(EngineSettings(engine=plugged.url)) as engine:
            return await act(engine)

    return asyncio.run(run())


@pytest.fixture
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, max_tokens=64)


@pytest.fixture
def index(plugged: Plugged, spec: IndexSpec) -> Iterator[str]:
    with_engine(plugged, lambda engine: create_index(engine, INDEX, spec, IndexOptions(shards=1, replicas=0)))
    yield INDEX
    call(plugged.url, "DELETE", f"/{INDEX}")
    call(plugged.url, "DELETE", f"/_ingest/pipeline/{pipeline_name(INDEX)}")


def write(plugged: Plugged, pipeline: str, documents: list[dict[str, Any]], index: str = INDEX) -> Reply:
    lines: list[dict[str, Any]] = []
    for document in documents:
        lines += [{"index": {"_id": document["_id"]}}, {key: document[key] for key in document if key != "_id"}]
    target = f"/{index}/_bulk?refresh=true&pipeline={pipeline}"
    reply = call(plugged.url, "POST", target, lines)
    assert reply.status == 200, reply.body
    return reply


def states(plugged: Plugged, index: str = INDEX) -> dict[str, int]:
    body = {"size": 0, "aggs": {"states": {"terms": {"field": "ttc.state"}}}}
    buckets = search(plugged.url, index, body).json()["aggregations"]["states"]["buckets"]
    return {bucket["key"]: bucket["doc_count"] for bucket in buckets}


def hits(plugged: Plugged, ids: list[str]) -> dict[str, dict[str, list[str]]]:
    fields = ["ttc.hash", "ttc.encoder", "ttc.state"]
    body = {"query": {"ids": {"values": ids}}, "docvalue_fields": fields}
    return {hit["_id"]: hit["fields"] for hit in search(plugged.url, INDEX, body).json()["hits"]["hits"]}


def test_documents_are_encoded_before_they_are_indexed(plugged: Plugged, index: str) -> None:
    assert write(plugged, "wait", corpus()).json()["errors"] is False
    assert states(plugged) == {"ready": 59, "empty": 1}
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    expected = search(plugged.url, DOC_VALUES, body)
    got = search(plugged.url, index, body)
    assert dict(zip(got.ids, got.scores, strict=True)) == pytest.approx(
        dict(zip(expected.ids, expected.scores, strict=True)), abs=1e-4
    )
    assert "ttc" not in call(plugged.url, "GET", f"/{index}/_source/d1").json()
    changed = {"title": "The trout", "text": "Our cat drinks milk.", "kind": "animal"}
    assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true&pipeline=wait", changed).status == 200
    again = search(
        plugged.url, index, body | {"rescore": ttc_rescore("dense", query_text="The trout Our cat drinks milk.")}
    )
    assert again.ids[0] == "d1"


def test_nested_token_vectors_are_written_and_read_in_the_shard(
    plugged: Plugged, index_name: str, encoder: Encoder
) -> None:
    """The processor writes what `es-ttc ingest` writes, and the shard's own rescorer reads it, beside spans."""
    spec = IndexSpec(encoder.identity, max_tokens=64, tokens="nested", spans=(SpanGrid(10, 5),))
    with_engine(plugged, lambda engine: create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0)))
    try:
        assert write(plugged, "wait", corpus(), index_name).json()["errors"] is False
        assert states(plugged, index_name) == {"ready": 59, "empty": 1}
        body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
        reply = search(plugged.url, index_name, body)
        assert reply.headers["x-ttc-applied"] == "true"
        scores = dict(zip(reply.ids, reply.scores, strict=True))
        scores.pop(WITHOUT_TEXT)
        assert scores == pytest.approx(in_memory(encoder, spec, "spectral", [CATS]), abs=1e-4)
        assert "ttc" not in call(plugged.url, "GET", f"/{index_name}/_source/d1").json()
    finally:
        call(plugged.url, "DELETE", f"/{index_name}")


def test_without_waiting_they_are_pending(plugged: Plugged, index: str) -> None:
    stale = [document | {"ttc": {"hash": "of another text", "state": "ready"}} for document in corpus()[:3]]
    stale += [document | {"ttc.hash": "of another text", "ttc.state": "ready"} for document in corpus()[3:5]]
    assert write(plugged, "pending", stale).json()["errors"] is False
    assert states(plugged) == {"pending": 5}
    assert [list(fields) for fields in hits(plugged, ["d0", "d4"]).values()] == [["ttc.state"], ["ttc.state"]]
    reply = search(plugged.url, index, {"query": EVERYTHING, "rescore": ttc_rescore()})
    assert reply.headers["x-ttc-applied"] == "false; reason=no_features"


def test_one_document_that_cannot_be_encoded_spoils_no_other(plugged: Plugged, index: str) -> None:
    documents = [*corpus()[:3], {"_id": "odd", "text": [{"no": "text"}]}]
    items = write(plugged, "strict", documents).json()["items"]
    assert [item["index"]["status"] for item in items][:3] == [201] * 3
    assert items[3]["index"]["status"] == 400
    assert "text field [text]" in items[3]["index"]["error"]["reason"]
    assert states(plugged) == {"ready": 3}


def test_a_sidecar_that_is_away(plugged: Plugged, index: str) -> None:
    with plugged.sidecar.failing(lambda _: call(NOWHERE, "GET", "/")):
        assert write(plugged, "wait", corpus()[:20]).json()["errors"] is False
        refused = write(plugged, "strict", corpus()[20:22]).json()
    assert states(plugged) == {"pending": 20}
    assert [item["index"]["status"] for item in refused["items"]] == [400, 400]
    before = plugged.stats()["documents_encoded"]
    for _ in range(20):  # until the breaker lets one try
        write(plugged, "wait", corpus()[:20])
        if plugged.stats()["documents_encoded"] > before:
            break
    write(plugged, "wait", corpus()[:20])
    assert states(plugged) == {"ready": 19, "empty": 1}


def test_an_index_that_carries_nothing(plugged: Plugged) -> None:
    try:
        call(plugged.url, "PUT", "/plain", {"mappings": {"properties": {"ttc.state": {"type": "keyword"}}}})
        write(plugged, "wait", corpus()[:2], "plain")
        assert states(plugged, "plain") == {"pending": 2}
        item = write(plugged, "strict", corpus()[:1], "plain").json()["items"][0]["index"]
        assert "index [plain] was not made by" in item["error"]["reason"]
    finally:
        call(plugged.url, "DELETE", "/plain")


TEXT_FIELDS = ("title", "text", "meta.note", "deep.er.text")
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),  # OpenSearch's pipelines take no greater ones
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([0.1, 1e16, 1e-5, 123456789.125, 9999999999999998.0, -0.0, 5e-324, 1e-323]),
        st.text(max_size=200),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
texts = values | st.fixed_dictionaries({"no": values})
sources = st.fixed_dictionaries(
    {},
    optional={
        "title": texts,
        "text": values,
        "meta": st.fixed_dictionaries({"note": values}) | values,
        "meta.note": values,
        "deep": st.fixed_dictionaries({}, optional={"er": st.fixed_dictionaries({"text": values}), "er.text": values})
        | st.lists(st.fixed_dictionaries({"er": st.fixed_dictionaries({"text": values}) | values}), max_size=3),
        "unread": values,
    },
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    documents=st.lists(sources, min_size=8, max_size=20),
    storage=st.sampled_from([{}, {"codec": "int2"}, {"tokens": "nested", "max_tokens": 9}]),
)
def test_the_stamped_hash_is_that_of_es_ttc_ingest(
    plugged: Plugged, encoder: Encoder, documents: list[dict[str, Any]], storage: dict[str, Any]
) -> None:
    spec = IndexSpec(encoder.identity, text_fields=TEXT_FIELDS, **storage)
    docs = [{"_index": "any", "_id": "1", "_source": document} for document in documents]
    body = json.dumps({"pipeline": {"processors": [processor(spec)]}, "docs": docs}).encode()
    reply = call(plugged.url, "POST", "/_ingest/pipeline/_simulate", body, {"content-type": "application/json"})
    assert reply.status == 200, reply.body
    for document, answer in zip(documents, reply.json()["docs"], strict=True):
        stamp = answer["doc"]["_source"]["ttc"]
        expected = {"state": "pending"}
        with suppress(InvalidRequest):  # an object has no text
            expected["hash"] = content_hash(*compose(orjson.loads(json.dumps(document)), TEXT_FIELDS), spec)
        assert stamp == expected, document


def test_the_pipeline_that_es_ttc_makes(plugged: Plugged, index: str, encoder: Encoder, spec: IndexSpec) -> None:
    """All writers pass it; what `es-ttc ingest` writes stays as it is; `es-ttc fill` encodes what was stamped."""
    with_engine(plugged, lambda engine: add_pipeline(engine, index))
    letters = DeadLetterList()
    inputs = Inputs([Documents(corpus()[:20])])
    with_engine(plugged, lambda engine: ingest(engine, index, inputs, encoder, dead_letters=letters))
    write(plugged, "_none", corpus()[20:25])
    assert states(plugged) == {"ready": 19, "empty": 1, "pending": 5}
    stale = hits(plugged, ["d1", "d22"])
    assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "another text"}).status == 200
    changed = hits(plugged, ["d1"])
    assert changed["d1"]["ttc.hash"] != stale["d1"]["ttc.hash"]
    assert "ttc.encoder" not in changed["d1"]
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    through = search(plugged.gateway, index, body).json()["ttc"]
    assert (through["applied"], through["scored"]) == (True, 18)  # a hash alone is no feature
    assert search(plugged.url, index, body).headers["x-ttc-applied"] == "true"
    filled = with_engine(plugged, lambda engine: fill_attached(engine, index, encoder))
    assert [(one.written, one.unchanged) for one in filled] == [(6, 19)]
    assert states(plugged) == {"ready": 24, "empty": 1}
    assert hits(plugged, ["d22"])["d22"]["ttc.hash"] == stale["d22"]["ttc.hash"]
    assert run(["index", "pipeline", index, "--wait", "--on-error", "fail", "--engine", plugged.url]) == 0
    assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "and a third"}).status == 200
    assert states(plugged) == {"ready": 24, "empty": 1}
    assert run(["index", "pipeline", index, "--remove", "--engine", plugged.url]) == 0
    write(plugged, "_none", [{"_id": "plain", "text": "without a stamp"}])
    assert states(plugged) == {"ready": 24, "empty": 1}


def own(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the values of some fields of a hit."""
    return {name: values[0] for name, values in fields.items()}


async def test_a_followed_index_encodes_and_enriches_by_the_plugins_processor(
    plugged: Plugged, index: str, encoder: Encoder, spec: IndexSpec, tmp_path: Path
) -> None:
    """What the pipeline of the engine's own processors does: the jobs find every document, and their writes pass."""
    engine = await connect(EngineSettings(engine=plugged.url))
    job = encoding_job_id(index)
    forged = {"state": "ready", "hash": "0" * 32, "encoder": spec.encoder.key, "enriched": "any", "key": "0" * 32}
    async with scripted_model(lambda _: "snow, flood") as model:
        settings = JobSetup(plugged.url, index, model.url, tmp_path).settings
        try:
            options = EnrichmentOptions(prompt="base")
            [made] = await follow(engine, settings, index, "later", options, plugin_timeout="20s")
            assert made.as_dict()["plugin"] is True
            some = [document | {"ttc": forged, "ttc.enrichment": "a phrase"} for document in corpus()[:5]]
            assert write(plugged, "_none", some).json()["errors"] is False
            for document in corpus()[:5]:
                digest = content_hash(*compose(document, spec.text_fields), spec)
                stamped = hits(plugged, [document["_id"]])[document["_id"]]
                assert own(stamped) == {"ttc.hash": digest, "ttc.state": "pending"}
            async with following(engine, settings, index, encoder):
                found = await settled(engine, settings, index)
            assert {state for _, state in found.values()} <= {"ready", "empty"}
            assert await features_fit(engine, index, spec) == found.keys()
            assert made.enrichment is not None
            await enrich_all(engine, settings, made.enrichment.job)
            texts = sum(state == "ready" for _, state in found.values())
            assert await enriched(engine, index) == texts
            assert states(plugged).get("pending") is None  # the job's writes keep the features
            assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "another"}).status == 200
            assert (states(plugged)["pending"], await enriched(engine, index)) == (1, texts - 1)

            [again] = await follow(engine, settings, index, "now", options, plugin_timeout="20s")
            assert again.index.options.key == made.index.options.key
            assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "a third"}).status == 200
            assert states(plugged).get("pending") is None
            with plugged.sidecar.failing(lambda _: call(NOWHERE, "GET", "/")):
                assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "a fourth"}).status == 200
            assert states(plugged)["pending"] == 1
            through = call(plugged.gateway, "PUT", f"/{index}/_doc/new?refresh=true", {"text": "through the gateway"})
            assert (through.status, through.headers["x-ttc-encoded"]) == (201, "true")
            assert own(hits(plugged, ["new"])["new"])["ttc.state"] == "ready"
            async with following(engine, settings, index, encoder):
                assert {state for _, state in (await settled(engine, settings, index)).values()} <= {"ready", "empty"}
            assert (await commands.shown_job(engine, settings, job)).progress.failed == 0
            assert await unfollow(engine, settings.jobs_index, index)
            assert call(plugged.url, "GET", f"/_ingest/pipeline/ttc-writes-{index}").status == 404
        finally:
            call(plugged.url, "DELETE", f"/{settings.jobs_index}*")
            await engine.close()


async def enriched(engine: Engine, index: str) -> int:
    await engine.refresh(index)
    return await engine.count(index, {"exists": {"field": "ttc.enriched"}})


def test_the_command_that_follows_writes_by_the_plugin(
    plugged: Plugged, index: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_TTC_JOBS_INDEX", f"{index}-jobs")
    command = ["index", "pipeline", index, "--engine", plugged.url]
    try:
        assert run([*command, "--encode", "now", "--plugin", "--timeout", "0s"]) == 1
        assert "[timeout] must be a time of more than 0" in capsys.readouterr().err
        assert call(plugged.url, "GET", f"/_ingest/pipeline/ttc-writes-{index}").status == 404
        assert run([*command, "--encode", "now", "--plugin", "--timeout", "20s"]) == 0
        assert "are encoded before they are indexed, and where that fails by job encode-" in capsys.readouterr().out
        assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true", {"text": "a text"}).status == 201
        assert states(plugged) == {"ready": 1}
        assert run(["index", "show", index, "--engine", plugged.url]) == 0
        assert "encoded now, by the plugin's processor" in capsys.readouterr().out
        assert run([*command, "--wait"]) == 1
        assert "has the final pipeline [ttc-writes-" in capsys.readouterr().err
        assert run([*command, "--remove"]) == 0
    finally:
        call(plugged.url, "DELETE", f"/{index}-jobs*")


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"timeout": "0s"},
        {"wiat": True},
        {"wait": "yes"},
        {"content": {}},
        {"encode": "soon"},
        {"enrich": True},
    ],
)
def test_plugin_pipeline_with_invalid_options_is_refused(plugged: Plugged, options: dict[str, Any]) -> None:
    reply = call(plugged.url, "PUT", "/_ingest/pipeline/wrong", {"processors": [{"ttc": options}]})
    assert reply.status == 400
    assert next(iter(options)) in reply.reason

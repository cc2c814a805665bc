"""The ingest processor: documents that any client writes get what `es-ttc ingest` writes, or are said to wait."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.mappings.index import IndexOptions, create_index
from es_ttc.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.gateway.client import Reply, call, search
from tests.gateway.conftest import corpus
from tests.gateway.test_rescore import EVERYTHING
from tests.plugin.conftest import STORED, Plugged
from tests.plugin.test_rescore import ours
from tests.support.plugin import NOWHERE

INDEX = "written-by-anyone"


@pytest.fixture(scope="module")
def plugged(opensearch_plugged: Plugged) -> Plugged:
    return opensearch_plugged


@pytest.fixture(scope="module", autouse=True)
def pipelines(plugged: Plugged) -> Iterator[None]:
    for name, options in (("pending", {}), ("wait", {"wait": True}), ("strict", {"wait": True, "on_error": "fail"})):
        body = {"processors": [{"set": {"field": "stamped", "value": "{{_ingest.timestamp}}"}}, {"ttc": options}]}
        assert call(plugged.url, "PUT", f"/_ingest/pipeline/{name}", body).status == 200
    yield
    for name in ("pending", "wait", "strict"):
        call(plugged.url, "DELETE", f"/_ingest/pipeline/{name}")


@pytest.fixture
def index(plugged: Plugged, encoder: Encoder) -> Iterator[str]:
    spec = IndexSpec(encoder.identity, codec="float16", max_tokens=64)

    async def make() -> None:
        engine = await connect(EngineSettings(engine=plugged.url))
        await create_index(engine, INDEX, spec, IndexOptions(shards=1, replicas=0))
        await engine.close()

    asyncio.run(make())
    yield INDEX
    call(plugged.url, "DELETE", f"/{INDEX}")


def write(plugged: Plugged, pipeline: str, documents: list[dict[str, Any]], index: str = INDEX) -> Reply:
    lines: list[dict[str, Any]] = []
    for document in documents:
        lines += [{"index": {"_id": document["_id"]}}, {key: document[key] for key in document if key != "_id"}]
    body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    target = f"/{index}/_bulk?refresh=true&pipeline={pipeline}"
    reply = call(plugged.url, "POST", target, body, {"content-type": "application/x-ndjson"})
    assert reply.status == 200, reply.body
    return reply


def states(plugged: Plugged, index: str = INDEX) -> dict[str, int]:
    body = {"size": 0, "aggs": {"states": {"terms": {"field": "ttc.state"}}}}
    buckets = search(plugged.url, index, body).json()["aggregations"]["states"]["buckets"]
    return {bucket["key"]: bucket["doc_count"] for bucket in buckets}


def test_documents_are_encoded_before_they_are_indexed(plugged: Plugged, index: str) -> None:
    assert write(plugged, "wait", corpus()).json()["errors"] is False
    assert states(plugged) == {"ready": 59, "empty": 1}
    body = {"query": EVERYTHING, "size": 60, "rescore": ours()}
    expected = search(plugged.url, STORED, body)
    got = search(plugged.url, index, body)
    assert dict(zip(got.ids, got.scores, strict=True)) == pytest.approx(
        dict(zip(expected.ids, expected.scores, strict=True)), abs=1e-4
    )
    assert "ttc" not in call(plugged.url, "GET", f"/{index}/_source/d1").json()
    changed = {"title": "The trout", "text": "Our cat drinks milk.", "anyway": "creature"}
    assert call(plugged.url, "PUT", f"/{index}/_doc/d1?refresh=true&pipeline=wait", changed).status == 200
    again = search(plugged.url, index, body | {"rescore": ours("dense", query_text="The trout Our cat drinks milk.")})
    assert again.ids[0] == "d1"


def test_without_waiting_they_are_pending(plugged: Plugged, index: str) -> None:
    stale = [document | {"ttc": {"hash": "of another text", "state": "ready"}} for document in corpus()[:5]]
    assert write(plugged, "pending", stale).json()["errors"] is False
    assert states(plugged) == {"pending": 5}
    reply = search(plugged.url, index, {"query": EVERYTHING, "rescore": ours()})
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
        assert "index [plain] carries nothing of es-ttc" in item["error"]["reason"]
    finally:
        call(plugged.url, "DELETE", "/plain")


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"timeout": "0s"}, {"wiat": True}, {"batch_size": 0}])
def test_mistakes_in_a_pipeline(plugged: Plugged, options: dict[str, Any]) -> None:
    reply = call(plugged.url, "PUT", "/_ingest/pipeline/wrong", {"processors": [{"ttc": options}]})
    assert reply.status == 400
    assert next(iter(options)) in reply.reason

"""Token vectors as nested vector fields, outside `_source`: beside spans, in a side index, followed."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs.following import follow, unfollow
from es_ttc.index.attach import attach_beside, fill_attached
from es_ttc.index.attach.detach import detach, traces_of
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from tests.attach.conftest import MAPPING, SETTINGS, corpus, put, remove_traces, update
from tests.attach.test_beside import ask, scores
from tests.support.following import following, settings_for, settled


@pytest.fixture(scope="session")
def nested(spec: IndexSpec) -> IndexSpec:
    return replace(spec, tokens="nested", spans=(SpanGrid(3, 2),))


@pytest.fixture
async def vector_shop(engine: Engine, index_name: str) -> AsyncIterator[str]:
    """An index whose owner has foreseen vectors, which OpenSearch requires."""
    knn = {"knn": True} if (await engine.capabilities()).product == "opensearch" else {}
    await engine.create_index(index_name, {"settings": {"index": SETTINGS["index"] | knn}, "mappings": MAPPING})
    await put(engine, index_name, corpus())
    yield index_name
    await remove_traces(engine, index_name)


async def near_vector(engine: Engine, index: str, encoder: Encoder, field: str, text: str) -> list[str]:
    """Return the first documents by the engine's own kNN over a nested vector field."""
    vector = encoder.encode([text], role="query", tokens=False).pooled[0].tolist()
    if (await engine.capabilities()).product == "elasticsearch":
        body: dict[str, Any] = {"knn": {"field": field, "query_vector": vector, "k": 5, "num_candidates": 200}}
    else:
        knn = {"knn": {field: {"vector": vector, "k": 5}}}
        body = {"query": {"nested": {"path": field.rpartition(".")[0], "score_mode": "max", "query": knn}}}
    hits = (await engine.search(index, {**body, "_source": False}))["hits"]["hits"]
    return [hit["_id"] for hit in hits]


async def test_attach_nested_vectors_with_spans(
    engine: Engine, vector_shop: str, gateway: str, nested: IndexSpec, encoder: Encoder
) -> None:
    index = vector_shop
    [source] = await Index.behind(engine, index)
    await attach_beside(engine, source, replace(nested, tokens="packed", codec="float16"), encoder)
    packed = scores(ask(gateway, index))
    await detach(engine, (await traces_of(engine, index))[0])
    filled = await attach_beside(engine, source, nested, encoder)
    assert (filled.written, filled.failed) == (20, 0)
    reply = ask(gateway, index)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    assert scores(reply) == pytest.approx(packed, abs=1e-3)
    [objects] = await traces_of(engine, index)
    for field in ("ttc.tokens.v", "ttc.spans.v"):
        assert (await near_vector(engine, objects.sides[0], encoder, field, "a cat drinks milk"))[0] == "d2"
    await update(engine, index, "d2", {"body": "Our cat drinks milk, every day and every night."})
    [again] = await fill_attached(engine, index, encoder)
    assert (again.written, again.failed) == (1, 0)
    reply = ask(gateway, index)
    assert (reply.json()["ttc"]["scored"], reply.json()["ttc"].get("stale")) == (19, None)
    await detach(engine, objects)
    assert {"ttc"}.isdisjoint((await engine.request("GET", f"/{index}/_source/d2")).keys())


@pytest.mark.processors
async def test_nested_vectors_of_a_followed_document_change_with_its_text(
    engine: Engine, index_name: str, gateway: str, nested: IndexSpec, encoder: Encoder
) -> None:
    await create_index(engine, index_name, nested, IndexOptions(shards=1, replicas=0))
    settings = settings_for(engine, index_name)
    await follow(engine, settings, index_name, "later")
    documents = {name: {key: document[key] for key in document if key != "big"} for name, document in corpus().items()}
    await put(engine, index_name, documents)
    async with following(engine, settings, index_name, encoder):
        await settled(engine, settings, index_name)
        first = scores(ask(gateway, index_name))
        body = {"doc": {"body": "Our cat sleeps on the warm sofa."}}
        await engine.request("POST", f"/{index_name}/_update/d0", body=body)
        await settled(engine, settings, index_name)
    reply = ask(gateway, index_name)
    assert reply.json()["ttc"]["scored"] == 19
    found = scores(reply)
    changed = {name for name in first if found[name] != pytest.approx(first[name], abs=1e-6)}
    assert changed == {"d0"}
    hits = (await engine.search(index_name, {"size": 30}))["hits"]["hits"]
    assert {hit["_id"]: hit["_source"] for hit in hits} == documents | {"d0": documents["d0"] | body["doc"]}
    await unfollow(engine, settings.jobs_index, index_name)

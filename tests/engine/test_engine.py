"""The protocol on real engines of both products."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from es_ttc.engine import versions
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError, InvalidRequest
from es_ttc.settings import EngineSettings

pytestmark = pytest.mark.engine

THREE_SHARDS = {"settings": {"number_of_shards": 3, "number_of_replicas": 0}, "mappings": {"dynamic": "strict"}}


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[Engine]:
    engine = await connect(EngineSettings(engine=engine_url))
    yield engine
    await engine.close()


async def write(engine: Engine, index: str, count: int) -> None:
    body = {"settings": THREE_SHARDS["settings"], "mappings": {"properties": {"n": {"type": "integer"}}}}
    await engine.create_index(index, body)
    lines = [line for n in range(count) for line in (b'{"index":{"_id":"%d"}}' % n, b'{"n":%d}' % n)]
    assert all(item.ok for item in await engine.bulk(index, lines))
    await engine.refresh(index)


async def test_capabilities_are_those_of_the_products_at_hand(engine: Engine) -> None:
    found = await engine.capabilities()
    if found.product == "opensearch":
        assert found.version >= versions.OLDEST["opensearch"]
        assert (found.knn_engine, found.licence, found.max_dims) == ("lucene", "apache-2.0", 16_000)
    else:
        assert found.version >= versions.OLDEST["elasticsearch"]
        assert (found.knn_engine, found.licence, found.max_dims) == ("", "basic", 4096)
    assert found.vectors
    assert found.max_content_length == 100 * 2**20
    assert found.nodes == 1
    assert await engine.capabilities() is found


async def test_an_index_is_made_seen_and_deleted(engine: Engine, index_name: str) -> None:
    assert not await engine.exists(index_name)
    await engine.create_index(index_name, {"mappings": {"properties": {"title": {"type": "text"}}}})
    assert await engine.exists(index_name)
    assert await engine.mapping(index_name) == {index_name: {"properties": {"title": {"type": "text"}}}}
    await engine.delete_index(index_name)
    assert not await engine.exists(index_name)


@pytest.mark.parametrize("name", ["{}*", "*", "_all", "{},other", "{}?", "-{}", ""])
async def test_names_that_could_mean_several_indices_are_refused(engine: Engine, index_name: str, name: str) -> None:
    await write(engine, index_name, 1)
    with pytest.raises(InvalidRequest, match="one index"):
        await engine.delete_index(name.format(index_name))
    assert await engine.exists(index_name)


async def test_every_action_of_a_bulk_has_its_own_outcome(engine: Engine, index_name: str) -> None:
    await engine.create_index(index_name, {"mappings": {"properties": {"n": {"type": "integer"}}}})
    lines = [
        *(b'{"index":{"_id":"fine"}}', b'{"n":1}'),
        *(b'{"index":{"_id":"wrong"}}', b'{"n":"one"}'),
        *(b'{"create":{"_id":"fine"}}', b'{"n":2}'),
        b'{"delete":{"_id":"absent"}}',
    ]
    fine, wrong, doubled, absent = await engine.bulk(index_name, lines)
    assert (fine.position, fine.id, fine.status, fine.error, fine.ok) == (0, "fine", 201, None, True)
    assert (wrong.position, wrong.id, wrong.status, wrong.ok) == (1, "wrong", 400, False)
    assert wrong.error
    assert wrong.error_type.endswith("parsing_exception")
    assert 'For input string: "one"' in wrong.error
    assert (doubled.id, doubled.status) == ("fine", 409)
    assert (absent.id, absent.status) == ("absent", 404)


async def test_search_and_count_answer_a_query(engine: Engine, index_name: str) -> None:
    await write(engine, index_name, 10)
    query = {"range": {"n": {"gte": np.int64(7)}}}
    found = await engine.search(index_name, {"query": query, "sort": ["n"]}, filter_path="hits.hits._id")
    assert found == {"hits": {"hits": [{"_id": "7"}, {"_id": "8"}, {"_id": "9"}]}}
    assert await engine.count(index_name, query) == 3
    assert await engine.count(index_name) == 10


@pytest.mark.parametrize("batch", [3, 5, 1000])
async def test_a_scan_yields_every_hit_once(engine: Engine, index_name: str, batch: int) -> None:
    await write(engine, index_name, 20)
    query = {"range": {"n": {"lt": 15}}}
    hits = [hit async for hit in engine.scan(index_name, query, source=["n"], batch=batch)]
    assert sorted(hit["_source"]["n"] for hit in hits) == list(range(15))


async def test_a_scan_sees_the_index_as_it_was(engine: Engine, index_name: str) -> None:
    await write(engine, index_name, 10)
    seen: list[str] = []
    async for hit in engine.scan(index_name, {"match_all": {}}, source=False, batch=2):
        if not seen:
            await engine.request(
                "POST", f"/{index_name}/_delete_by_query?refresh=true", body={"query": {"match_all": {}}}
            )
        seen.append(hit["_id"])
    assert sorted(seen) == [str(n) for n in range(10)]
    assert await engine.count(index_name) == 0


async def test_a_refusal_carries_the_engines_reason(engine: Engine, index_name: str) -> None:
    with pytest.raises(EngineError, match=r"400: .*unknown query \[nonsense\]") as refused:
        await engine.search(index_name, {"query": {"nonsense": {}}})
    assert refused.value.upstream_status == 400
    assert refused.value.upstream["error"]["type"] == "parsing_exception"
    with pytest.raises(EngineError, match="index_not_found_exception") as missing:
        await engine.mapping(index_name)
    assert missing.value.upstream_status == 404


async def test_a_name_with_odd_characters_reaches_the_engine_whole(engine: Engine) -> None:
    assert not await engine.exists("über/../_cat")
    with pytest.raises(EngineError, match="invalid_index_name_exception"):
        await engine.create_index("a b#c", {})

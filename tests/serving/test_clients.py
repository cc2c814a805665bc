"""Both vendors' clients against both products, with nothing changed but the address."""

from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch
from elasticsearch import NotFoundError as ElasticsearchNotFound
from opensearchpy import AsyncOpenSearch
from opensearchpy import NotFoundError as OpenSearchNotFound

from tests.serving.conftest import Behind

RESCORE = {"window_size": 50, "ttc": {"method": "spectral"}}
QUERY = {"match": {"text": "cat drinks milk"}}


async def test_elasticsearch_py(behind: Behind, index_name: str) -> None:
    async with AsyncElasticsearch(behind.gateway) as client:
        assert (await client.info())["version"]["number"]
        assert await client.ping()
        await client.indices.create(index=index_name, mappings={"properties": {"text": {"type": "text"}}})
        assert await client.indices.exists(index=index_name)
        operations: list[dict[str, Any]] = []
        for number in range(20):
            operations += [{"index": {"_id": str(number)}}, {"text": f"cat {number}"}]
        assert not (await client.bulk(index=index_name, operations=operations, refresh=True))["errors"]
        assert (await client.get(index=index_name, id="3"))["_source"]["text"] == "cat 3"
        assert (await client.count(index=index_name))["count"] == 20
        page = await client.search(index=index_name, query={"match_all": {}}, size=8, scroll="1m")
        seen = {hit["_id"] for hit in page["hits"]["hits"]}
        while hits := (page := await client.scroll(scroll_id=page["_scroll_id"], scroll="1m"))["hits"]["hits"]:
            seen |= {hit["_id"] for hit in hits}
        assert len(seen) == 20
        await client.clear_scroll(scroll_id=page["_scroll_id"])
        await client.update(index=index_name, id="3", doc={"text": "dog"})
        await client.delete(index=index_name, id="4")
        with pytest.raises(ElasticsearchNotFound):
            await client.get(index=index_name, id="4")
        single = await client.search(index=behind.index, query=QUERY, size=5, rescore=RESCORE)
        assert single["ttc"]["applied"] is True
        both = await client.msearch(index=behind.index, searches=[{}, {"query": QUERY, "size": 5, "rescore": RESCORE}])
        assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
        wrong = await client.msearch(index=behind.index, searches=[{}, {"rescore": {"ttc": {"methd": "blend"}}}])
        assert wrong["responses"][0]["status"] == 400
        await client.indices.delete(index=index_name)


async def test_opensearch_py(behind: Behind, index_name: str) -> None:
    async with AsyncOpenSearch(behind.gateway) as client:
        assert (await client.info())["version"]["number"]
        assert await client.ping()
        await client.indices.create(index=index_name, body={"mappings": {"properties": {"text": {"type": "text"}}}})
        assert await client.indices.exists(index=index_name)
        lines: list[dict[str, Any]] = []
        for number in range(20):
            lines += [{"index": {"_id": str(number)}}, {"text": f"cat {number}"}]
        assert not (await client.bulk(body=lines, index=index_name, params={"refresh": "true"}))["errors"]
        assert (await client.get(index=index_name, id="3"))["_source"]["text"] == "cat 3"
        assert (await client.count(index=index_name))["count"] == 20
        page = await client.search(index=index_name, body={"size": 8}, params={"scroll": "1m"})
        seen = {hit["_id"] for hit in page["hits"]["hits"]}
        while hits := (page := await client.scroll(body={"scroll_id": page["_scroll_id"], "scroll": "1m"}))["hits"][
            "hits"
        ]:
            seen |= {hit["_id"] for hit in hits}
        assert len(seen) == 20
        await client.update(index=index_name, id="3", body={"doc": {"text": "dog"}})
        await client.delete(index=index_name, id="4")
        with pytest.raises(OpenSearchNotFound):
            await client.get(index=index_name, id="4")
        body = {"query": QUERY, "size": 5, "rescore": RESCORE}
        single = await client.search(index=behind.index, body=body)
        assert single["ttc"]["applied"] is True
        both = await client.msearch(index=behind.index, body=[{}, body])
        assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
        await client.indices.delete(index=index_name)

"""Both vendors' clients search with a section on both products, with nothing changed but the address."""

from typing import Any

from elasticsearch import AsyncElasticsearch
from opensearchpy import AsyncOpenSearch

from tests.serving.conftest import SearchStack

SEARCH: dict[str, Any] = {
    "query": {"match": {"text": "cat drinks milk"}},
    "size": 5,
    "rescore": {"window_size": 50, "ttc": {"method": "spectral"}},
}
WRONG = {"rescore": {"ttc": {"methd": "blend"}}}


async def test_elasticsearch_client_searches_through_the_gateway(stack: SearchStack) -> None:
    async with AsyncElasticsearch(stack.gateway) as client:
        single = await client.search(index=stack.index, **SEARCH)
        both = await client.msearch(index=stack.index, searches=[{}, SEARCH, {}, WRONG])
    assert single["ttc"]["applied"] is True
    assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
    assert both["responses"][1]["status"] == 400


async def test_opensearch_client_searches_through_the_gateway(stack: SearchStack) -> None:
    async with AsyncOpenSearch(stack.gateway) as client:
        single = await client.search(index=stack.index, body=SEARCH)
        both = await client.msearch(index=stack.index, body=[{}, SEARCH, {}, WRONG])
    assert single["ttc"]["applied"] is True
    assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
    assert both["responses"][1]["status"] == 400

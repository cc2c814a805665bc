"""Both vendors' clients search with a section on both products, with nothing changed but the address."""

from typing import Any

from elasticsearch import AsyncElasticsearch
from opensearchpy import AsyncOpenSearch

from tests.serving.conftest import Behind

SEARCH: dict[str, Any] = {
    "query": {"match": {"text": "cat drinks milk"}},
    "size": 5,
    "rescore": {"window_size": 50, "ttc": {"method": "spectral"}},
}
WRONG = {"rescore": {"ttc": {"methd": "blend"}}}


async def test_elasticsearch_py(behind: Behind) -> None:
    async with AsyncElasticsearch(behind.gateway) as client:
        single = await client.search(index=behind.index, **SEARCH)
        both = await client.msearch(index=behind.index, searches=[{}, SEARCH, {}, WRONG])
    assert single["ttc"]["applied"] is True
    assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
    assert both["responses"][1]["status"] == 400


async def test_opensearch_py(behind: Behind) -> None:
    async with AsyncOpenSearch(behind.gateway) as client:
        single = await client.search(index=behind.index, body=SEARCH)
        both = await client.msearch(index=behind.index, body=[{}, SEARCH, {}, WRONG])
    assert single["ttc"]["applied"] is True
    assert both["responses"][0]["hits"]["hits"] == single["hits"]["hits"]
    assert both["responses"][1]["status"] == 400

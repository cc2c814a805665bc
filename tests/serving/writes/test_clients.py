"""Clients' own bulk forms, to the gateway and to the engine's port: all documents are found by every method.

What passes through the gateway is encoded at once; what goes to the engine's port is pending until a fill.
"""

import asyncio
import gzip
from collections.abc import Callable, Iterator
from typing import Any

import elasticsearch
import elasticsearch.helpers
import opensearchpy
import opensearchpy.helpers
import orjson
import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import call, search
from tests.serving.corpus import ANIMALS, DEEDS
from tests.serving.writes.conftest import Servers, fill_pending

pytestmark = pytest.mark.processors

DOCUMENTS = 100
CATS = len(range(0, DOCUMENTS, len(ANIMALS)))


def documents(client: str) -> Iterator[dict[str, Any]]:
    """Texts that are the same for all clients, so they are encoded once."""
    for number in range(DOCUMENTS):
        animal, deed = ANIMALS[number % len(ANIMALS)], DEEDS[number % len(DEEDS)]
        text = f"The {animal} of house {number} {deed}, and nobody watches it for {number} hours."
        yield {"client": client, "number": number, "title": f"The {animal}", "text": text}


def actions(index: str, client: str) -> Iterator[dict[str, Any]]:
    for number, document in enumerate(documents(client)):
        yield {"_index": index, "_id": f"{client} {number}", "_source": document}


def with_elasticsearch_py(url: str, index: str, client: str) -> None:
    with elasticsearch.Elasticsearch(url, http_compress=True) as connected:
        assert elasticsearch.helpers.bulk(connected, actions(index, client), chunk_size=70)[0] == DOCUMENTS


def with_async_elasticsearch_py(url: str, index: str, client: str) -> None:
    async def write() -> None:
        async with elasticsearch.AsyncElasticsearch(url) as connected:
            done, _ = await elasticsearch.helpers.async_bulk(connected, actions(index, client))
            assert done == DOCUMENTS

    asyncio.run(write())


def with_opensearch_py(url: str, index: str, client: str) -> None:
    with opensearchpy.OpenSearch(url) as connected:
        helped = opensearchpy.helpers.parallel_bulk(connected, actions(index, client), chunk_size=50)
        assert sum(done for done, _ in helped) == DOCUMENTS


def with_async_opensearch_py(url: str, index: str, client: str) -> None:
    async def write() -> None:
        async with opensearchpy.AsyncOpenSearch(url) as connected:
            done, _ = await opensearchpy.helpers.async_bulk(connected, actions(index, client))
            assert done == DOCUMENTS

    asyncio.run(write())


def with_logstash(url: str, index: str, client: str) -> None:
    """Write as logstash-output-elasticsearch does: ids and routings of null, compressed."""
    meta = orjson.dumps({"index": {"_id": None, "_index": index, "routing": None}})
    events = ({**document, "@version": "1", "@timestamp": "2026-01-01T00:00:00Z"} for document in documents(client))
    body = b"".join(meta + b"\n" + orjson.dumps(event) + b"\n" for event in events)
    headers = {
        "content-type": "application/json",
        "content-encoding": "gzip",
        "x-elastic-product-origin": "logstash-output-elasticsearch",
    }
    target = "/_bulk?filter_path=errors,items.*.error,items.*.status"
    reply = call(url, "POST", target, gzip.compress(body, 1), headers)
    assert (reply.status, reply.json()["errors"]) == (200, False)
    assert reply.json().keys() == {"errors", "items"}


def with_beats(url: str, index: str, client: str) -> None:
    """Write as libbeat does: `create` without ids."""
    meta = orjson.dumps({"create": {"_index": index}})
    events = (
        {
            "@timestamp": "2026-01-01T00:00:00.000Z",
            **document,
            "ecs": {"version": "8.0.0"},
            "agent": {"type": "filebeat"},
        }
        for document in documents(client)
    )
    body = b"".join(meta + b"\n" + orjson.dumps(event) + b"\n" for event in events)
    headers = {"content-type": "application/json; charset=UTF-8", "x-elastic-product-origin": "beats"}
    reply = call(url, "POST", "/_bulk?filter_path=errors%2Citems.%2A.error%2Citems.%2A.status", body, headers)
    assert (reply.status, reply.json()["errors"]) == (200, False)


CLIENTS: dict[str, Callable[[str, str, str], None]] = {
    "elasticsearch-py": with_elasticsearch_py,
    "elasticsearch-py async": with_async_elasticsearch_py,
    "opensearch-py": with_opensearch_py,
    "opensearch-py async": with_async_opensearch_py,
    "logstash": with_logstash,
    "beats": with_beats,
}


def states_by_client(url: str, index: str) -> dict[str, dict[str, int]]:
    call(url, "POST", f"/{index}/_refresh")
    inner = {"states": {"terms": {"field": "ttc.state"}}}
    body = {"size": 0, "aggs": {"clients": {"terms": {"field": "client.keyword", "size": 50}, "aggs": inner}}}
    found = search(url, index, body).json()["aggregations"]["clients"]["buckets"]
    return {one["key"]: {state["key"]: state["doc_count"] for state in one["states"]["buckets"]} for one in found}


def takes_newest_client(engine: str) -> bool:
    """Whether elasticsearch-py works on the engine's port: it refuses OpenSearch, and is refused by Elasticsearch 8."""
    told = call(engine, "GET", "/")
    major = int(told.json()["version"]["number"].partition(".")[0])
    return "x-elastic-product" in told.headers and major >= elasticsearch.__version__[0]


def test_all_clients_documents_are_found(servers: Servers, followed: Callable[..., str], encoder: Encoder) -> None:
    index = followed()
    takes_elasticsearch_py = takes_newest_client(servers.engine)
    for name, write in CLIENTS.items():
        write(servers.gateway, index, f"{name} to the gateway")
        if takes_elasticsearch_py or not name.startswith("elasticsearch-py"):
            write(servers.engine, index, f"{name} to the engine")
    found = states_by_client(servers.engine, index)
    assert len(found) == (12 if takes_elasticsearch_py else 10)
    for name, states in found.items():
        assert states == {"ready" if name.endswith("gateway") else "pending": DOCUMENTS}, name

    asyncio.run(fill_pending(servers.engine, index, encoder))
    after = states_by_client(servers.engine, index)
    assert after == {name: {"ready": DOCUMENTS} for name in found}
    orders = {}
    for name in found:
        for method in ("blend", "spectral"):
            body = {
                "query": {"bool": {"must": {"match": {"text": "cat"}}, "filter": {"term": {"client.keyword": name}}}},
                "size": CATS,
                "rescore": {"window_size": 50, "ttc": {"method": method, "query_text": "which cat drinks milk?"}},
            }
            reply = search(servers.gateway, index, body)
            assert reply.headers["x-ttc-applied"] == "true", name
            assert reply.json()["ttc"]["scored"] >= CATS, (name, method)
        hits = reply.json()["hits"]["hits"]
        orders[name] = sorted((-round(hit["_score"], 5), hit["_source"]["number"]) for hit in hits)
    assert all(order == orders["beats to the engine"] for order in orders.values())

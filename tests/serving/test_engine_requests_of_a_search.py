"""How many requests to the engine a search costs, as in docs/architecture.md; all carry the caller's headers.

Any header may give or restrict rights: security plugins and proxies read headers of their own.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.attach import attach_beside
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.library import IndexReader, own_gateway
from es_ttc.settings import EngineSettings, GatewaySettings
from tests.serving.client import call
from tests.serving.conftest import make_index
from tests.serving.corpus import corpus
from tests.serving.relay import Relay, relay
from tests.support.gateway import gateway_to

pytestmark = pytest.mark.engine

HEADERS = {"cookie": "a=b", "x-any-rights": "of-a-tenant", "x-forwarded-for": "192.0.2.1"}
OF_THE_GATEWAY = "/_nodes/"
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
QUERY = {"match": {"text": "cat drinks milk"}}


def rescore(**section: Any) -> dict[str, Any]:
    return {"rescore": {"window_size": 40, "ttc": {"timeout": "60s", "on_error": "fail", **section}}}


SPECTRAL = {"query": QUERY, **rescore(method="spectral")}
TIMED = {"timeout": "60s", "on_error": "fail"}
BLEND = {"query": QUERY, "rescore": {"window_size": 10, "ttc": TIMED}}
FILTERED = {"bool": {"must": QUERY, "filter": {"range": {"number": {"gte": 0}}}}}
GROUPS = {"field": "group.keyword"}
KNN = {"field": "ttc.vector", "query_text": "cat drinks milk", "k": 5}
SEARCHES: dict[str, dict[str, Any] | list[dict[str, Any]]] = {
    "no section": {"query": QUERY},
    "`spectral`, window of one page": {**SPECTRAL, "size": 40},
    "`spectral`, wide window": SPECTRAL,
    "`blend`, candidates join": BLEND,
    "`blend`, two parts of a question": {
        "query": QUERY,
        "rescore": {"window_size": 10, "ttc": {**TIMED, "query_texts": ["cat drinks milk", "rain"], "parts": "each"}},
    },
    "`blend`, `collapse`": {**BLEND, "collapse": GROUPS},
    "`blend`, `collapse` with `inner_hits`": {**BLEND, "collapse": {**GROUPS, "inner_hits": {"name": "members"}}},
    "`blend`, `aggs`": {**BLEND, "aggs": {"groups": {"terms": GROUPS}}},
    "`blend`, `aggs`, candidates not counted": {
        **BLEND,
        "aggs": {"groups": {"terms": GROUPS}},
        **rescore(candidates={"knn": 10, "count": False}),
    },
    "`blend`, `sort` by score and a number": {**BLEND, "sort": ["_score", "number"]},
    "`blend`, `passages`": {"query": QUERY, **rescore(passages=1)},
    "`blend`, `passages` with `context`": {"query": QUERY, **rescore(passages=1, context=5)},
    "`blend`, `passages` with `context`, `_source` false": {
        "query": QUERY,
        **rescore(passages=1, context=5),
        "_source": False,
    },
    "`spectral`, then `mmr`": {
        "query": QUERY,
        "rescore": [rescore(method="spectral")["rescore"], {"window_size": 10, "ttc": {"method": "mmr"}}],
    },
    "`rr` with a rescorer as reranker": {"query": QUERY, **rescore(method="rr", params={"reranker": "spectral"})},
    "`knn` with a text": {"query": {"knn": {"ttc.vector": {"query_text": "cat drinks milk", "k": 5}}}},
    "`knn` with `nnn`": {"knn": {**KNN, "ttc": {"method": "nnn", "timeout": "60s", "on_error": "fail"}}},
    "`query` with `rm3`": {"query": {"ttc": {"method": "rm3", "query_text": "cat drinks milk", "timeout": "60s"}}},
    "`_msearch` of three `spectral`": [SPECTRAL, SPECTRAL, SPECTRAL],
    "side index: `spectral`, wide window": SPECTRAL,
    "side index: `blend`, candidates join": BLEND,
    "side index: `blend`, filtered": {**BLEND, "query": FILTERED},
}


@pytest.fixture(scope="module")
def indexed(opensearch_url: str, encoder: Encoder) -> Iterator[tuple[str, str]]:
    spec = make_index(opensearch_url, "test-requests", encoder)
    lines = [line for one in corpus() for line in ({"index": {"_id": one.pop("_id")}}, one)]
    call(opensearch_url, "POST", "/test-requests-source/_bulk?refresh=true", lines)
    asyncio.run(attached(opensearch_url, "test-requests-source", spec, encoder))
    yield opensearch_url, "test-requests"
    call(opensearch_url, "DELETE", "/test-requests,test-requests-source,ttc-*-test-requests-source")


async def attached(url: str, index: str, spec: IndexSpec, encoder: Encoder) -> None:
    async with connected(EngineSettings(engine=url)) as engine:
        [source] = await Index.behind(engine, index)
        await attach_beside(engine, source, spec, encoder)


def send(url: str, index: str, body: dict[str, Any] | list[dict[str, Any]]) -> None:
    if isinstance(body, dict):
        reply = call(url, "POST", f"/{index}/_search", body, HEADERS)
        answers = [reply.json()]
    else:
        lines = [line for one in body for line in ({}, one)]
        reply = call(url, "POST", f"/{index}/_msearch", lines, HEADERS)
        answers = reply.json()["responses"]
    assert reply.status == 200, reply.body
    assert all(answer.get("ttc", {}).get("applied", True) for answer in answers)


def counted(seen: Relay, gateway: str, index: str, body: dict[str, Any] | list[dict[str, Any]]) -> int:
    seen.passed.clear()
    send(gateway, index, body)
    for passed in seen.passed:
        carried = {name: passed.headers.get(name) for name in HEADERS}
        assert carried == HEADERS or passed.target.startswith(OF_THE_GATEWAY), passed.target
    return len(seen.passed)


def test_a_search_costs_the_requests_that_the_table_says(indexed: tuple[str, str], encoder: Encoder) -> None:
    engine, index = indexed
    found = {}
    for name, body in SEARCHES.items():
        searched = f"{index}-source" if name.startswith("side index") else index
        with relay(engine) as seen, gateway_to(seen.url, encoder, scoring_timeout_ms=60_000) as gateway:
            send(gateway, searched, {"query": {"match_all": {}}})  # what a gateway learns of its engine once
            first = counted(seen, gateway, searched, body)
            found[name] = (first, min(counted(seen, gateway, searched, body) for _ in range(3)))
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert found == {name: (int(first), int(warm)) for name, first, warm in rows}


async def test_research_reads_the_windows_of_several_queries_in_few_requests(
    indexed: tuple[str, str], encoder: Encoder
) -> None:
    engine, index = indexed
    texts = ["cat drinks milk", "the farmer watches", "rain"]
    for searched, sent in (
        (index, ["/{0}/_msearch"] * 3),
        (f"{index}-source", ["/_msearch"] * 2 + ["/{0}/_msearch"] * 4),
    ):
        with relay(engine) as seen:
            settings = GatewaySettings(engine=seen.url, encoder=encoder.identity.key)
            async with own_gateway(settings, encoder) as gateway:
                await gateway.upstream.product()
                reader = IndexReader(gateway, gateway.upstream.gateway_caller(searched), encoder)
                queries = [await reader.encoded(text) for text in texts]
                windows = await reader.windows(queries, ["text"], 5, lambda _: None)
            assert sum(len(window.hits) - window.first for window in windows) > 0
            found = sorted(one.target.partition("?")[0] for one in seen.passed if "_msearch" in one.target)
            assert found == [target.format(searched) for target in sent]

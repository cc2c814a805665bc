"""An index with features survives an upgrade of its engine: rankings stay, and writing goes on. `make test-engines`.

The file is no `test_*.py`: the older engines need a Java or a download that `make test` does not.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.index.attach import fill_attached
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings, Settings
from tests.attach.conftest import FIELDS, MAPPING, SETTINGS, attach, put
from tests.attach.conftest import corpus as shop_corpus
from tests.serving.client import search
from tests.serving.conftest import make_index
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.shared_nodes import started

Ranking = dict[str, float]

UPGRADES: dict[str, tuple[Callable[[], Distribution], Callable[[], Distribution]]] = {
    "opensearch": (lambda: OpenSearchDistribution(version="2.19.1"), OpenSearchDistribution),
    "elasticsearch": (lambda: ElasticsearchDistribution(version="8.19.13"), ElasticsearchDistribution),
}
OWN, ATTACHED = "upgraded", "upgraded-shop"
MILK = "a cat that drinks milk"
TTC: dict[str, Any] = {"query_text": MILK, "on_error": "fail"}
KNN: dict[str, Any] = {"field": "ttc.vector", "query_text": MILK, "k": 10}
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "blend": (OWN, {"query": {"match": {"text": "cat"}}, "rescore": {"window_size": 20, "ttc": TTC}}),
    "spectral": (OWN, {"query": {"match_all": {}}, "rescore": {"ttc": {**TTC, "method": "spectral"}}}),
    "nnn": (OWN, {"knn": {**KNN, "ttc": {"method": "nnn", "params": {"exact": True}}}}),
    "spans": (OWN, {"knn": {**KNN, "ttc": {"method": "spectral"}}}),
    "attached blend": (ATTACHED, {"query": {"match": {"body": "cat"}}, "rescore": {"window_size": 20, "ttc": TTC}}),
    "attached knn": (ATTACHED, {"knn": {**KNN, "ttc": {"method": "dense"}}}),
}


@pytest.fixture(params=UPGRADES)
def product(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    process.stop(name_of(request.param), Settings().cache_dir, drop_data=True)


def name_of(product: str) -> str:
    return f"tests-upgrade-{product}"


def running(product: str, distribution: Distribution) -> AbstractContextManager[process.Node]:
    return started(distribution, name=name_of(product), keep_data=True)


async def attach_shop(url: str, encoder: Encoder) -> None:
    engine = await connect(EngineSettings(engine=url))
    try:
        await engine.create_index(ATTACHED, {"settings": SETTINGS, "mappings": MAPPING})
        await put(engine, ATTACHED, shop_corpus())
        spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="float16", max_tokens=64)
        await attach(engine, ATTACHED, spec, encoder)
    finally:
        await engine.close()


async def write_and_fill(url: str, encoder: Encoder) -> None:
    engine = await connect(EngineSettings(engine=url))
    try:
        await put(engine, ATTACHED, {"new": {"title": "The cat", "body": "Another cat that drinks milk."}})
        await fill_attached(engine, ATTACHED, encoder)
    finally:
        await engine.close()


def rankings(url: str, encoder: Encoder) -> dict[str, Ranking]:
    settings = GatewaySettings(engine=url, port=0, default_timeout_ms=20_000)
    found = {}
    with running_gateway(settings, load=lambda _name, _folder: encoder) as gateway:
        for name, (index, body) in SEARCHES.items():
            reply = search(gateway, index, body | {"size": 20})
            assert reply.status == 200, reply.body
            assert reply.json()["ttc"]["applied"] is True
            found[name] = dict(zip(reply.ids, reply.scores, strict=True))
    return found


def test_rankings_stay_and_writing_goes_on(product: str, encoder: Encoder) -> None:
    older, newer = UPGRADES[product]
    with running(product, older()) as node:
        make_index(node.url, OWN, encoder, codec="int8", spans=(SpanGrid(5, 3),))
        asyncio.run(attach_shop(node.url, encoder))
        before = rankings(node.url, encoder)
    with running(product, newer()) as node:
        after = rankings(node.url, encoder)
        asyncio.run(write_and_fill(node.url, encoder))
        then = rankings(node.url, encoder)
    for name, ranking in before.items():
        assert list(after[name]) == list(ranking), name
        assert after[name] == pytest.approx(ranking, abs=1e-4), name
    assert "new" in then["attached knn"]

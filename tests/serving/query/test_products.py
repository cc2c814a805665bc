"""The same query on both products: BM25's scores differ by a factor, the order and what a weight means do not."""

import asyncio
import random
import uuid
from collections.abc import Iterator

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from tests.serving.client import call
from tests.serving.query.conftest import fill
from tests.support.gateway import gateway_to
from tests.support.llm import scripted_model_beside

WORDS = [
    f"{first}{second}" for first in ("river", "stone", "cloud", "leaf") for second in ("bed", "fall", "line", "mark")
]
QUERY = "riverbed stonefall"
SHAPE = {"title": (1, 3), "text": (3, 25)}
PROPOSED = ("cloudline", "leafmark stoneline", "riverfall")


@pytest.fixture(scope="module")
def twins(opensearch_url: str, elasticsearch_url: str, encoder: Encoder) -> Iterator[tuple[str, str, str]]:
    """Gateways of both products, and the index of the same documents behind each."""
    chance = random.Random(5)
    documents = [
        {key: " ".join(chance.choices(WORDS, k=chance.randint(*length))) for key, length in SHAPE.items()}
        for _ in range(60)
    ]
    enrichment = {str(number): [" ".join(chance.sample(WORDS, 2))] for number in range(1, 61, 3)}
    name = f"test-twins-{uuid.uuid4().hex[:8]}"
    urls = (opensearch_url, elasticsearch_url)
    answer = orjson.dumps({"phrases": PROPOSED}).decode()
    with scripted_model_beside(lambda _: answer) as model:
        first, second = (gateway_to(url, encoder, llm_url=model.url, llm_model="m") for url in urls)
        try:
            for url in urls:
                asyncio.run(fill(url, name, encoder, documents, enrichment))
            with first as one, second as other:
                yield one, other, name
        finally:
            for url in urls:
                call(url, "DELETE", f"/{name}")


@pytest.mark.parametrize("params", [{"weight": 0.2}, {"weight": 1.0, "enrichment": 2}, {"weight": 2.0}])
def test_both_products_rank_alike(twins: tuple[str, str, str], params: dict[str, float]) -> None:
    *gateways, index = twins
    section = {"method": "sira", "query_text": QUERY, "params": {"tau": 0.9, **params}, "on_error": "fail"}
    body = {"query": {"ttc": section}, "size": 60, "_source": False}
    opensearch, elasticsearch = (call(url, "POST", f"/{index}/_search", body) for url in gateways)
    assert opensearch.json()["ttc"]["terms"] == elasticsearch.json()["ttc"]["terms"] >= len(PROPOSED)
    assert len(opensearch.ids) > 40
    assert opensearch.ids == elasticsearch.ids
    ratios = [one / other for one, other in zip(opensearch.scores, elasticsearch.scores, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-4)

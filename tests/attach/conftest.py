"""An index that people already use, on each engine, and one with features from the beginning to compare with."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import orjson
import pytest

from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineError
from es_ttc.index.attach import FillResult, attach_beside
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine

FIELDS = ("title", "body")
ANIMALS = ("cat", "dog", "horse", "owl", "trout")
DEEDS = ("sleeps on the sofa", "hunts at night", "drinks milk", "runs in the snow")
MAPPING = {
    "_meta": {"owner": "the shop"},
    "dynamic": False,
    "properties": {"title": {"type": "text"}, "body": {"type": "text"}, "price": {"type": "integer"}},
}
SETTINGS = {"index": {"number_of_shards": 2, "number_of_replicas": 0}}


def corpus() -> dict[str, dict[str, Any]]:
    """Twenty short documents; one has no text."""
    documents = {
        f"d{number}": {"title": f"The {animal}", "body": f"Our {animal} {deed}.", "price": number, "big": 2**60 + 1}
        for number, (animal, deed) in enumerate((animal, deed) for animal in ANIMALS for deed in DEEDS)
    }
    documents["d7"] = {"price": 7}
    return documents


@pytest.fixture(scope="session")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@pytest.fixture(scope="session")
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, text_fields=FIELDS, scales=(1, 3, float("inf")), max_tokens=64)


@pytest.fixture
async def shop(engine: Engine, index_name: str) -> AsyncIterator[str]:
    """An index of somebody else's; afterwards what was attached to it is taken away as well."""
    await engine.create_index(index_name, {"settings": SETTINGS, "mappings": MAPPING})
    await put(engine, index_name, corpus())
    yield index_name
    await remove_traces(engine, index_name)


@pytest.fixture(scope="session")
def gateways(encoder: Encoder) -> Iterator[PerEngine[str]]:
    with PerEngine(lambda engine: gateway_to(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def gateway(engine_url: str, gateways: PerEngine[str]) -> str:
    return gateways.of(engine_url)


async def put(engine: Engine, index: str, documents: Mapping[str, Mapping[str, Any]], **params: str) -> None:
    """Write documents as their users do."""
    lines = [
        line
        for identifier, document in documents.items()
        for line in (orjson.dumps({"index": {"_id": identifier, **params}}), orjson.dumps(document))
    ]
    assert all(item.ok for item in await engine.bulk(index, lines))
    await engine.refresh(index)


async def update(engine: Engine, index: str, identifier: str, document: Mapping[str, Any]) -> None:
    """Change a part of a document as its users do: no pipeline runs."""
    lines = [orjson.dumps({"update": {"_id": identifier}}), orjson.dumps({"doc": document})]
    assert all(item.ok for item in await engine.bulk(index, lines))
    await engine.refresh(index)


async def attach(engine: Engine, index: str, spec: IndexSpec, encoder: Encoder) -> FillResult:
    """Attach one index."""
    [source] = await Index.behind(engine, index)
    return await attach_beside(engine, source, spec, encoder)


async def remove_traces(engine: Engine, index: str) -> None:
    """Delete what a test may have left beside an index."""
    everywhere = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
    found = await engine.request("GET", f"/ttc-*-{index}*", params=everywhere)
    for name in found:
        await engine.delete_index(name)


async def pipelines(engine: Engine, index: str) -> dict[str, Any]:
    """Return the pipelines with an index's name in theirs."""
    try:
        found: dict[str, Any] = await engine.request("GET", f"/_ingest/pipeline/*{index}*")
    except EngineError as error:
        if error.upstream_status != 404:
            raise
        return {}
    return found


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

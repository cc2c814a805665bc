"""An index with features in both engines, behind a gateway with the page."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.lab.demo import exhibit, limit_style
from es_ttc.lab.evaluation.datasets import Collection
from es_ttc.playground import playground_routes
from es_ttc.settings import EngineSettings
from tests.serving.client import call
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine


@dataclass(frozen=True)
class Judged:
    """An index to judge.

    Attributes:
        collection: Its documents, with queries and what is relevant to them.
        index: Its name.
        engine: Address of the engine.
        gateway: Address of the gateway.
    """

    collection: Collection
    index: str
    engine: str
    gateway: str


@pytest.fixture(scope="session")
def all_judged(encoder: Encoder) -> Iterator[PerEngine[Judged]]:
    with PerEngine(lambda engine: _judged(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def judged(engine_url: str, all_judged: PerEngine[Judged]) -> Judged:
    return all_judged.of(engine_url)


@contextmanager
def _judged(engine_url: str, encoder: Encoder) -> Iterator[Judged]:
    name = f"test-judged-{uuid.uuid4().hex[:12]}"
    collection = limit_style.generate(documents=30, queries=12)

    async def fill() -> None:
        async with connected(EngineSettings(engine=engine_url)) as engine:
            await exhibit.fill_index(engine, name, collection, encoder)

    asyncio.run(fill())
    try:
        with gateway_to(engine_url, encoder, further=playground_routes, encoder="minilm@onnx", ui=True) as gateway:
            yield Judged(collection, name, engine_url, gateway)
    finally:
        call(engine_url, "DELETE", f"/{name}")
        forget = {"query": {"term": {"index": name}}}
        call(engine_url, "POST", "/ttc-judgements/_delete_by_query?refresh=true&conflicts=proceed", forget)

"""A small collection in both engines, behind a gateway, for the commands that search."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import delete_if_there
from es_ttc.lab.demo import exhibit, limit_style
from es_ttc.lab.demo.exhibit import Exhibit
from es_ttc.settings import EngineSettings
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine


@dataclass(frozen=True)
class Filled:
    """An index with profiles, the engine that holds it and the gateway in front."""

    exhibit: Exhibit
    engine: str
    gateway: str


@pytest.fixture(scope="session")
def all_filled(encoder: Encoder) -> Iterator[PerEngine[Filled]]:
    with PerEngine(lambda engine: _filled(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def filled(engine_url: str, all_filled: PerEngine[Filled]) -> Filled:
    return all_filled.of(engine_url)


@contextmanager
def _filled(engine_url: str, encoder: Encoder) -> Iterator[Filled]:
    name = f"test-cli-{uuid.uuid4().hex[:12]}"
    with asyncio.Runner() as runner:
        engine = runner.run(connect(EngineSettings(engine=engine_url)))
        try:
            small = limit_style.generate(documents=30, queries=20)
            shown = runner.run(exhibit.fill_index(engine, name, small, encoder))
            with gateway_to(engine_url, encoder, encoder="minilm@onnx") as gateway:
                yield Filled(shown, engine_url, gateway)
        finally:
            runner.run(delete_if_there(engine, name))
            runner.run(engine.close())

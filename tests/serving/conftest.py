"""A gateway in front of each engine, and one index with features behind it."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr

from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.versions import Product
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.serving.client import call
from tests.serving.corpus import corpus
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine

SIDECAR_TOKEN = "a-token-of-the-tests"


@dataclass(frozen=True)
class SearchStack:
    """An engine with the gateway in front of it and an index in it."""

    engine: str
    gateway: str
    index: str
    spec: IndexSpec

    @property
    def product(self) -> Product:
        """Which of the two the engine is."""
        return "elasticsearch" if "x-elastic-product" in call(self.engine, "GET", "/").headers else "opensearch"


async def fill(
    url: str, name: str, spec: IndexSpec, encoder: Encoder, documents: list[dict[str, Any]], shards: int = 2
) -> None:
    """Make an index and write documents with their features."""
    async with connected(EngineSettings(engine=url)) as engine:
        await create_index(engine, name, spec, IndexOptions(shards=shards, replicas=0))
    await write(url, name, encoder, documents)


async def write(url: str, name: str, encoder: Encoder, documents: list[dict[str, Any]]) -> None:
    """Write documents with their features."""
    async with connected(EngineSettings(engine=url)) as engine:
        letters = DeadLetterList()
        await ingest(engine, name, Inputs([Documents(documents)]), encoder, dead_letters=letters)
        await engine.refresh(name)


def make_index(
    url: str,
    name: str,
    encoder: Encoder,
    *,
    shards: int = 2,
    documents: list[dict[str, Any]] | None = None,
    **storage: Any,
) -> IndexSpec:
    """Make an index of the corpus, or of other documents."""
    spec = IndexSpec(encoder.identity, **{"max_tokens": 64, **storage})
    asyncio.run(fill(url, name, spec, encoder, corpus() if documents is None else documents, shards))
    return spec


@pytest.fixture(scope="session")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The shared encoder; the corpus is encoded once."""
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@pytest.fixture(scope="session")
def all_stacks(encoder: Encoder) -> Iterator[PerEngine[SearchStack]]:
    with PerEngine(lambda engine: _stack(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def stack(engine_url: str, all_stacks: PerEngine[SearchStack]) -> SearchStack:
    return all_stacks.of(engine_url)


@contextmanager
def _stack(engine_url: str, encoder: Encoder) -> Iterator[SearchStack]:
    name = f"test-gateway-{uuid.uuid4().hex[:8]}"
    spec = make_index(engine_url, name, encoder)
    try:
        with gateway_to(
            engine_url, encoder, write_timeout_ms=60_000, max_window=300, sidecar_token=SecretStr(SIDECAR_TOKEN)
        ) as gateway:
            yield SearchStack(engine_url, gateway, name, spec)
    finally:
        call(engine_url, "DELETE", f"/{name}")

"""The gateway's index again, with spans for passage search."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from tests.serving.client import call
from tests.serving.conftest import SearchStack, fill
from tests.serving.corpus import corpus
from tests.serving.relay import Relay, relay
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine


@pytest.fixture(scope="session")
def all_spanned(encoder: Encoder) -> Iterator[PerEngine[SearchStack]]:
    with PerEngine(lambda engine: _spanned(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def spanned(engine_url: str, all_spanned: PerEngine[SearchStack]) -> SearchStack:
    return all_spanned.of(engine_url)


@contextmanager
def _spanned(engine_url: str, encoder: Encoder) -> Iterator[SearchStack]:
    name = f"test-knn-{uuid.uuid4().hex[:8]}"
    spec = IndexSpec(encoder.identity, max_tokens=64, spans=(SpanGrid(5, 3),))
    asyncio.run(fill(engine_url, name, spec, encoder, corpus()))
    try:
        with gateway_to(engine_url, encoder, max_window=300) as gateway:
            yield SearchStack(engine_url, gateway, name, spec)
    finally:
        call(engine_url, "DELETE", f"/{name}")


@pytest.fixture(scope="session")
def all_watched() -> Iterator[PerEngine[Relay]]:
    with PerEngine(relay) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def watched(spanned: SearchStack, all_watched: PerEngine[Relay]) -> Relay:
    return all_watched.of(spanned.engine)


@pytest.fixture
def relayed(watched: Relay) -> Iterator[Relay]:
    yield watched
    watched.before = lambda _: None
    watched.passed.clear()


@pytest.fixture(scope="session")
def all_through_relay(encoder: Encoder) -> Iterator[PerEngine[str]]:
    with PerEngine(lambda engine: gateway_to(engine, encoder, feature_cache_mb=0, max_window=300)) as per_engine:
        yield per_engine


@pytest.fixture(scope="session")
def through_relay(watched: Relay, all_through_relay: PerEngine[str]) -> str:
    """A gateway whose engine is watched; it keeps no features, so that it reads them each time."""
    return all_through_relay.of(watched.url)

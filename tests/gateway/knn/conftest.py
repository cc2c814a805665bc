"""The gateway's index again, with spans for passage search."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.gateway.server import running_gateway
from es_ttc.mappings.spec import IndexSpec, SpanGrid
from es_ttc.settings import GatewaySettings
from tests.gateway.client import call
from tests.gateway.conftest import Behind, corpus, fill
from tests.gateway.relay import Relay, relay


@pytest.fixture(scope="session")
def spanned(engine_url: str, encoder: Encoder) -> Iterator[Behind]:
    name = f"test-knn-{uuid.uuid4().hex[:8]}"
    spec = IndexSpec(encoder.identity, codec="float16", max_tokens=64, spans=(SpanGrid(5, 3),))
    asyncio.run(fill(engine_url, name, spec, encoder, corpus()))
    settings = GatewaySettings(engine=engine_url, port=0, default_timeout_ms=20_000, max_window=300)
    try:
        with running_gateway(settings, load=lambda _name, _folder: encoder) as gateway:
            yield Behind(engine_url, gateway, name, spec)
    finally:
        call(engine_url, "DELETE", f"/{name}")


@pytest.fixture(scope="session")
def watched(spanned: Behind) -> Iterator[Relay]:
    with relay(spanned.engine) as state:
        yield state


@pytest.fixture
def relayed(watched: Relay) -> Iterator[Relay]:
    yield watched
    watched.before = lambda _: None
    watched.passed.clear()


@pytest.fixture(scope="session")
def through_relay(watched: Relay, encoder: Encoder) -> Iterator[str]:
    """A gateway whose engine is watched; it keeps no features, so that it reads them each time."""
    settings = GatewaySettings(
        feature_cache_mb=0, engine=watched.url, port=0, default_timeout_ms=20_000, max_window=300
    )
    with running_gateway(settings, load=lambda _name, _folder: encoder) as url:
        yield url

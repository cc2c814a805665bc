"""What tests of followed writes share: the encoder, a gateway for each engine, ingest pipelines."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from es_ttc.encoders import CachedEncoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import encoding_turn
from es_ttc.errors import EngineError
from es_ttc.index.mappings.spec import IndexSpec
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than workers do, for writes and for pauses."""
    monkeypatch.setattr(encoding_turn, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(encoding_turn, "_STATE_SECONDS", 0.1)


@pytest.fixture(scope="session")
def encoder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return CachedEncoder(encoder, tmp_path_factory.mktemp("encodings"))


@pytest.fixture(scope="session")
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, max_tokens=64)


@pytest.fixture(scope="session")
def gateways(encoder: Encoder) -> Iterator[PerEngine[str]]:
    with PerEngine(lambda engine: gateway_to(engine, encoder)) as per_engine:
        yield per_engine


@pytest.fixture
def gateway(engine_url: str, gateways: PerEngine[str]) -> str:
    return gateways.of(engine_url)


@pytest.fixture
async def pipelines(engine: Engine, index_name: str) -> AsyncIterator[Callable[..., Any]]:
    """Makes ingest pipelines with the index's name in theirs; afterwards all of those are deleted."""

    async def make(name: str, *processors: dict[str, Any]) -> str:
        await engine.request("PUT", f"/_ingest/pipeline/{index_name}-{name}", body={"processors": processors})
        return f"{index_name}-{name}"

    yield make
    for setting in ("final_pipeline", "default_pipeline"):
        await engine.request("PUT", f"/{index_name}*/_settings", body={f"index.{setting}": "_none"})
    with suppress(EngineError):  # there may be none
        await engine.request("DELETE", f"/_ingest/pipeline/*{index_name}*")

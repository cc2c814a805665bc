"""An index whose writes are followed, and a gateway in front of it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.index.attach import fill_attached
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.attach.followed_writes import follow_pipeline_name, follow_writes
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine

NDJSON = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Servers:
    """An engine and a gateway in front of it."""

    engine: str
    gateway: str


async def follow(url: str, name: str, spec: IndexSpec, encode: Any, former: str | None = None) -> None:
    """Make an index whose writes are followed."""
    async with connected(EngineSettings(engine=url)) as engine:
        await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))
        if former is not None:
            await engine.request("PUT", f"/{name}/_settings", body={"index.final_pipeline": former})
        await follow_writes(engine, (await Indices.behind(engine, name)).only(), encode, enrich=False)


def unfollow(url: str, name: str) -> None:
    """Delete such an index, and its pipeline."""
    call(url, "DELETE", f"/{name}")
    call(url, "DELETE", f"/_ingest/pipeline/{follow_pipeline_name(name)}")


async def fill_pending(url: str, name: str, encoder: Encoder) -> None:
    """Encode the documents that are pending."""
    async with connected(EngineSettings(engine=url)) as engine:
        await fill_attached(engine, name, encoder)


def gateway_of(engine: str, encoder: Encoder) -> AbstractContextManager[str]:
    return gateway_to(engine, encoder, write_timeout_ms=60_000)


@pytest.fixture(scope="session")
def all_servers(encoder: Encoder) -> Iterator[PerEngine[Servers]]:
    @contextmanager
    def servers(engine: str) -> Iterator[Servers]:
        with gateway_of(engine, encoder) as url:
            yield Servers(engine, url)

    with PerEngine(servers) as per_engine:
        yield per_engine


@pytest.fixture
def servers(engine_url: str, all_servers: PerEngine[Servers]) -> Servers:
    return all_servers.of(engine_url)


@pytest.fixture(scope="session")
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, max_tokens=64)


@pytest.fixture
def followed(engine_url: str, index_name: str, spec: IndexSpec) -> Iterator[Callable[..., str]]:
    """Makes an index whose writes are followed; its pipeline goes afterwards."""
    made: list[str] = []

    def make(encode: str = "now", *, suffix: str = "", former: str | None = None, **storage: Any) -> str:
        name = f"{index_name}{suffix}"
        made.append(name)
        asyncio.run(follow(engine_url, name, spec, encode, former))
        return name

    yield make
    for name in made:
        unfollow(engine_url, name)


FEATURE_FIELDS = ("hash", "encoder", "state", "document", "tokens", "norms", "offsets", "pooled")


def stored(url: str, index: str) -> dict[str, dict[str, Any]]:
    """Return of each document what is stored of its features, and its source."""
    call(url, "POST", f"/{index}/_refresh")
    body = {
        "size": 1000,
        "query": {"match_all": {}},
        "docvalue_fields": [f"ttc.{name}" for name in FEATURE_FIELDS],
        "_source": True,
    }
    hits = call(url, "POST", f"/{index}/_search", body).json()["hits"]["hits"]
    return {hit["_id"]: {**hit.get("fields", {}), "source": hit["_source"]} for hit in hits}


def states(url: str, index: str) -> dict[str, str | None]:
    return {name: one.get("ttc.state", [None])[0] for name, one in stored(url, index).items()}


def encoded(reply: Reply) -> str | None:
    return reply.headers.get("x-ttc-encoded")

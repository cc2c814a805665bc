"""Attached indices that are encoded on demand: what searches find gets its features, and nothing else does."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.cli.doctor import check_engine, check_gateway
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import attach_beside, attach_on_demand, fill_attached
from es_ttc.index.attach.feature_locations import FeatureLocation, Indices, encoded_counts
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.features.keys import DocumentId, RoutedId
from es_ttc.serving.features.on_demand import WaitingDocument, next_documents, priority
from es_ttc.serving.writes.on_demand import rest_after
from es_ttc.settings import EngineSettings, GatewaySettings
from tests.attach.conftest import put, update, wait_for
from tests.attach.test_writers import expected, hashes
from tests.serving.client import call, search
from tests.serving.corpus import CATS
from tests.support.encoders import Watched
from tests.support.gateway import gateway_to
from tests.support.per_engine import PerEngine


@pytest.fixture(scope="session")
def busy_gateways(encoder: Encoder) -> Iterator[PerEngine[str]]:
    """Gateways that encode on demand all the time."""
    with PerEngine(lambda engine: gateway_to(engine, encoder, on_demand_share=1)) as per_engine:
        yield per_engine


@pytest.fixture
def busy(engine_url: str, busy_gateways: PerEngine[str]) -> str:
    return busy_gateways.of(engine_url)


@pytest.fixture
async def wares(engine: Engine, shop: str, spec: IndexSpec) -> str:
    """The shop, encoded on demand."""
    [source] = await Index.behind(engine, shop)
    await attach_on_demand(engine, source, spec)
    return shop


def summary(gateway: str, index: str, query: Any = None, **section: Any) -> dict[str, Any]:
    """Return what a search says of its window of all documents, or of those that match a query."""
    ours = {"window_size": 40, "ttc": {"query_text": CATS, **section}}
    reply = search(gateway, index, {"query": query or {"match_all": {}}, "size": 40, "rescore": ours})
    assert reply.status == 200, reply.body
    shown: dict[str, Any] = reply.json()["ttc"]
    return shown


def until_encoded(gateway: str, index: str, documents: int) -> dict[str, Any]:
    """Search until every document of the window is encoded; return what the last search says."""
    shown: dict[str, Any] = {}

    def encoded() -> bool:
        shown.update({"queued": 0, **summary(gateway, index)})
        return (shown["encoded"], shown["queued"]) == (documents, 0)

    wait_for(encoded, 60)
    return shown


async def location(engine: Engine, index: str) -> FeatureLocation:
    held = (await Indices.behind(engine, index)).only()
    await engine.refresh(held.index)
    return held


async def test_searches_are_complete_after_their_documents_were_encoded(
    engine: Engine, engine_url: str, wares: str, spec: IndexSpec, encoder: Encoder, busy: str, capsys: Any
) -> None:
    before = await engine.request("GET", f"/{wares}")
    cats = {"match": {"title": "cat"}}
    first = summary(busy, wares, cats)
    assert (first["applied"], first["encoded"], first["queued"]) == (False, 0, 4)
    wait_for(lambda: summary(busy, wares, cats)["encoded"] == 4)
    held = await location(engine, wares)
    assert await encoded_counts(engine, held) == (20, 4)  # nothing that no search has found
    assert await asyncio.to_thread(run, ["index", "show", wares, "--engine", engine_url]) == 0
    assert re.search(r"encoded share +20\.0%.*encoded on demand", capsys.readouterr().out, re.DOTALL)
    joined = summary(busy, wares, {"match": {"title": "owl"}}, candidates={"knn": 10})
    assert (joined["window"], joined["encoded"], joined["candidates"]["joined"]) == (4, 0, 4)
    assert until_encoded(busy, wares, 20)["applied"]  # d7, which has no text, waits no more
    # writes that nobody follows: a new price, a new text, a new document, one that goes
    await update(engine, wares, "d1", {"price": 99})
    await update(engine, wares, "d2", {"body": "Our cat drinks milk, every day and every night."})
    await put(engine, wares, {"new": {"title": "The cat", "body": "It drinks milk."}}, routing="elsewhere")
    await engine.request("DELETE", f"/{wares}/_doc/d3", params={"refresh": "true"})
    changed = summary(busy, wares, method="spectral")
    assert (changed["stale"], changed["encoded"], changed["queued"]) == (1, 18, 2)
    until_encoded(busy, wares, 20)
    [filled] = await fill_attached(engine, wares, encoder)
    assert (filled.written, filled.unchanged, filled.failed, filled.removed) == (0, 20, 0, 1)
    await engine.refresh(held.index)
    assert await hashes(engine, held.index) == await expected(engine, wares, spec)
    assert (await engine.request("GET", f"/{wares}"))[wares]["mappings"] == before[wares]["mappings"]
    metrics = call(busy, "GET", "/_ttc/metrics").body.decode()
    assert re.search(r'es_ttc_on_demand_documents_total\{outcome="encoded"\} (19|2\d)\.0', metrics)
    shown = call(busy, "GET", "/_ttc/").json()["on_demand"]
    assert (shown["queue"], 0 < shown["complete_windows"] < shown["windows"]) == (0, True)
    assert f"es_ttc_on_demand_complete_windows {shown['complete_windows']}.0" in metrics
    [of_shop] = [
        check for check in await check_engine(GatewaySettings(engine=engine_url), None) if wares in check.subject
    ]
    assert (of_shop.verdict, "encoded on demand, 100.0% so far" in of_shop.detail) == ("ok", True)
    assert "of recent windows were complete, 0 documents wait" in (await check_gateway(busy)).detail


async def test_documents_that_change_or_go_while_they_are_encoded(
    engine: Engine, engine_url: str, wares: str, spec: IndexSpec, encoder: Encoder
) -> None:
    changes: list[Sequence[str]] = []

    def change(texts: Sequence[str]) -> None:
        if changes or not any("Our" in text for text in texts):  # a query, or not the first documents
            return
        changes.append(texts)

        async def changed() -> None:
            async with connected(EngineSettings(engine=engine_url)) as other:
                await put(other, wares, {"d1": {"title": "Another", "body": "The owl sings."}})
                await other.request("DELETE", f"/{wares}/_doc/d2", params={"refresh": "true"})
                await fill_attached(other, wares, encoder)  # as another gateway might, to the same documents

        asyncio.run(changed())

    with gateway_to(engine_url, Watched(encoder, change), on_demand_share=1) as gateway:
        assert summary(gateway, wares, method="dense")["queued"] == 20
        until_encoded(gateway, wares, 19)
    assert changes
    await fill_attached(engine, wares, encoder)
    held = await location(engine, wares)
    assert await hashes(engine, held.index) == await expected(engine, wares, spec)


def test_the_queue_is_bounded_and_a_budget_of_nothing_encodes_nothing(
    engine_url: str, wares: str, encoder: Encoder
) -> None:
    with gateway_to(engine_url, encoder, on_demand_share=1, on_demand_queue=5) as gateway:
        assert summary(gateway, wares)["queued"] == 5
        until_encoded(gateway, wares, 20)
    call(engine_url, "PUT", f"/{wares}/_doc/new?refresh=true", {"title": "The cat"})
    with gateway_to(engine_url, encoder, on_demand_share=0) as gateway:
        for _ in range(2):
            assert not {"encoded", "queued"} & summary(gateway, wares).keys()
        assert "es_ttc_on_demand_queue 0.0" in call(gateway, "GET", "/_ttc/metrics").body.decode()


async def test_attach_on_demand_changes_no_features_that_serve(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder, gateway: str, busy: str
) -> None:
    [source] = await Index.behind(engine, shop)
    await attach_beside(engine, source, spec, encoder)
    before = await location(engine, shop)
    with pytest.raises(InvalidRequest, match="detach"):
        await attach_on_demand(engine, source, IndexSpec(encoder.identity, text_fields=("title",)))
    await put(engine, shop, {"new": {"title": "The cat"}})
    assert "queued" not in summary(gateway, shop)
    assert await attach_on_demand(engine, source, spec) == before.index
    assert (await location(engine, shop)).on_demand
    until_encoded(busy, shop, 21)
    await attach_beside(engine, source, IndexSpec(encoder.identity, text_fields=("title",)), encoder)
    assert (await location(engine, shop)).on_demand  # as an index whose writes are followed stays one


def test_the_next_documents_are_seen_often_in_windows_that_lack_few() -> None:
    assert priority(9, 90) > priority(1, 90)
    assert priority(1, 3) > priority(1, 90)
    assert priority(2, 90) == priority(3, 90)
    waiting = {
        DocumentId(index, RoutedId(name, None)): WaitingDocument(greatest, chance, 1, 1)
        for index, name, greatest, chance in (
            ("shop", "a", 1, 0.1), ("other", "b", 2, 0.5), ("shop", "c", 2, 0.9), ("shop", "d", 0, 0.9)
        )
    }  # fmt: skip
    assert [document.routed.id for document in next_documents(waiting, 3)] == ["c", "a"]


@pytest.mark.parametrize(("share", "rest"), [(1, 0), (0.5, 1), (0.25, 5)])
def test_rest_after_two_busy_seconds_of_three(share: float, rest: float) -> None:
    assert rest_after(2, 3, share) == rest

"""Writers go on while features are made: every document ends with those of its own text, and no write is lost."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EncoderError
from es_ttc.index.attach import attach_beside, fill_attached
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.ingest import compose, content_hash
from es_ttc.index.mappings.attached import ID, REASON
from es_ttc.index.mappings.indices import Index, sides_of
from es_ttc.index.mappings.spec import HASH, STATE, IndexSpec
from es_ttc.settings import EngineSettings
from tests.attach.conftest import ANIMALS, DEEDS, attach, put
from tests.support.encoders import Watched


async def hashes(engine: Engine, index: str) -> dict[str, str | None]:
    """Return each document's content hash as the features have it."""
    body = {"size": 1000, "docvalue_fields": [ID, HASH, STATE], "_source": False}
    hits = (await engine.search(index, body))["hits"]["hits"]
    return {
        hit["_id"]: hit.get("fields", {}).get(HASH, [None])[0]
        for hit in hits
        if hit.get("fields", {}).get(STATE) != ["checkpoint"]
    }


async def expected(engine: Engine, index: str, spec: IndexSpec) -> dict[str, str]:
    found = {}
    async for hit in engine.scan(index, {"match_all": {}}, source=True):
        text, spans = compose(hit["_source"], spec.text_fields)
        found[hit["_id"]] = content_hash(text, spans, spec)
    return found


async def test_every_document_ends_with_the_features_of_its_own_text(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    rng = random.Random(7)
    written: dict[str, dict[str, Any]] = {}
    attached = asyncio.Event()

    async def writers() -> None:
        """Index, update and delete all the time, as fast as the engine takes it, until the attach is through."""
        number = 0
        while not attached.is_set():
            lines: list[dict[str, Any]]
            identifier = f"d{rng.randrange(25)}"
            document: dict[str, Any] = {
                "title": f"The {rng.choice(ANIMALS)}",
                "body": f"{rng.choice(DEEDS)} {number}",
                "price": number,
            }
            number += 1
            if rng.random() < 0.15:
                lines = [{"delete": {"_id": identifier}}]
                written.pop(identifier, None)
            elif identifier in written and rng.random() < 0.5:
                # Features may be written between its read and its write.
                update = {"_id": identifier, "retry_on_conflict": 5}
                lines = [{"update": update}, {"doc": {"body": document["body"]}}]
                written[identifier] = written[identifier] | {"body": document["body"]}
            else:
                lines = [{"index": {"_id": identifier}}, document]
                written[identifier] = document
            items = await engine.bulk(shop, [orjson.dumps(line) for line in lines])
            assert items[0].status in (200, 201, 404)
        assert number > 10

    async with asyncio.TaskGroup() as both:
        both.create_task(writers())
        for _ in range(2):
            await attach(engine, shop, spec, encoder)
        attached.set()
    await fill_attached(engine, shop, encoder)
    await engine.refresh(shop)
    holder = (await Indices.behind(engine, shop)).only().index
    await engine.refresh(holder)
    assert await hashes(engine, holder) == await expected(engine, shop, spec)
    kept = {hit["_id"]: hit["_source"] async for hit in engine.scan(shop, {"match_all": {}}, source=True)}
    for identifier, document in written.items():
        assert {name: kept[identifier][name] for name in document} == document


async def test_a_document_that_changes_while_it_is_encoded_keeps_its_own_write(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    loop = asyncio.get_running_loop()

    def change(_texts: Sequence[str]) -> None:
        writing = put(engine, shop, {"d1": {"title": "Another", "body": "The owl sings.", "price": 1000}})
        asyncio.run_coroutine_threadsafe(writing, loop).result(30)

    filled = await attach(engine, shop, spec, Watched(encoder, change, times=1))
    assert filled.failed == 0
    holder = (await Indices.behind(engine, shop)).only().index
    await engine.refresh(holder)
    assert await hashes(engine, holder) == await expected(engine, shop, spec)
    assert (await engine.request("GET", f"/{shop}/_source/d1"))["price"] == 1000


async def test_two_fills_at_once_never_put_older_features_over_newer_ones(
    engine: Engine, engine_url: str, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    """One reads a text and is held up; the text changes and a second fill is through before the first one writes."""
    await attach(engine, shop, spec, encoder)
    await put(engine, shop, {"d1": {"title": "Second", "body": "text"}})
    loop = asyncio.get_running_loop()

    async def overtake() -> None:
        await put(engine, shop, {"d1": {"title": "Third", "body": "text"}})
        async with connected(EngineSettings(engine=engine_url)) as other:
            await fill_attached(other, shop, encoder)

    def overtaken(_texts: Sequence[str]) -> None:
        asyncio.run_coroutine_threadsafe(overtake(), loop).result(60)

    await fill_attached(engine, shop, Watched(encoder, overtaken, times=1))
    side = (await Indices.behind(engine, shop)).only().index
    await engine.refresh(side)
    assert await hashes(engine, side) == await expected(engine, shop, spec)


async def test_fill_documents_that_cannot_be_encoded_are_marked_with_the_reason(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await put(engine, shop, {"odd": {"title": "poison", "body": "text"}})

    def refuse(texts: Sequence[str]) -> None:
        if any("poison" in text for text in texts):
            raise EncoderError("the text is poison")

    poisoned = Watched(encoder, refuse)
    filled = await attach(engine, shop, spec, poisoned)
    assert (filled.written, filled.failed) == (20, 1)
    holder = (await Indices.behind(engine, shop)).only().index
    await engine.refresh(holder)
    body = {"query": {"term": {STATE: "failed"}}, "stored_fields": [REASON]}
    reasons = {hit["_id"]: hit["fields"][REASON][0] for hit in (await engine.search(holder, body))["hits"]["hits"]}
    assert reasons == {"odd": "the text is poison"}
    [filled] = await fill_attached(engine, shop, poisoned)
    assert (filled.written, filled.failed) == (0, 0)
    await put(engine, shop, {"odd": {"title": "harmless", "body": "text"}})
    [filled] = await fill_attached(engine, shop, poisoned)
    assert (filled.written, filled.failed) == (1, 0)


async def test_a_side_index_that_is_detached_under_way_does_not_come_back(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    loop = asyncio.get_running_loop()

    async def remove() -> None:
        for side in await sides_of(engine, shop):
            await engine.delete_index(side.index)

    def removed(_texts: Sequence[str]) -> None:
        asyncio.run_coroutine_threadsafe(remove(), loop).result(30)

    [source] = await Index.behind(engine, shop)
    with pytest.raises(Exception, match=r"was deleted while it was filled|index_not_found"):
        await attach_beside(engine, source, spec, Watched(encoder, removed, times=1))
    params = {"expand_wildcards": "all", "allow_no_indices": "true"}
    assert await engine.request("GET", f"/ttc-*-{shop}", params=params) == {}

"""Detaching leaves nothing: mapping, settings, pipelines, aliases and indices are what they were."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import detach, traces_of
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import MAPPING, attach, corpus, pipelines, put, remove_traces, update


async def state(engine: Engine, index: str) -> dict[str, Any]:
    """Return everything about an index that could have been changed."""
    everything = {"expand_wildcards": "all"}
    return {
        "index": await engine.request("GET", f"/{index}", params={"flat_settings": "true"}),
        "pipelines": await pipelines(engine, index),
        "names": sorted(await engine.request("GET", f"/*{index}*", params=everything)),
        "aliases": await engine.request("GET", f"/*{index}*/_alias", params=everything),
        "documents": {hit["_id"]: hit["_source"] async for hit in engine.scan(index, {"match_all": {}}, source=True)},
    }


async def test_a_side_index_is_gone_without_a_trace(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    before = await state(engine, shop)
    await attach(engine, shop, spec, encoder)
    during = await state(engine, shop)
    assert during["names"] != before["names"]
    assert {key: during[key] for key in ("index", "pipelines", "documents")} == {
        key: before[key] for key in ("index", "pipelines", "documents")
    }
    [traces] = await traces_of(engine, shop)
    assert (len(traces.sides), traces.inside, traces.staying) == (1, False, ())
    await detach(engine, traces)
    assert await state(engine, shop) == before
    assert not (await traces_of(engine, shop))[0].any
    await detach(engine, traces)  # as after a lost answer
    assert await state(engine, shop) == before


@pytest.mark.processors
@pytest.mark.parametrize("former", [None, "of their own"])
async def test_of_features_inside_only_the_empty_fields_stay(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder, former: str | None
) -> None:
    theirs = f"theirs-{shop}"
    if former:
        added = {"processors": [{"set": {"field": "seen", "value": former}}]}
        await engine.request("PUT", f"/_ingest/pipeline/{theirs}", body=added)
        await engine.request("PUT", f"/{shop}/_settings", body={"index.final_pipeline": theirs})
    try:
        before = await state(engine, shop)
        await attach(engine, shop, spec, encoder, inside=True)
        # What is written now passes both pipelines; who writes a document back with its features keeps them.
        await put(engine, shop, {"new": {"title": "The cat", "body": "It drinks milk."}})
        written = (await engine.request("GET", f"/{shop}/_doc/new"))["_source"]
        assert written["ttc"]["state"] == "pending"
        assert written.get("seen") == former
        await attach(engine, shop, spec, encoder, inside=True)
        whole = (await engine.request("GET", f"/{shop}/_doc/new"))["_source"]
        assert whole["ttc"]["state"] == "ready"
        await put(engine, shop, {"new": whole | {"price": 3}})
        assert (await engine.request("GET", f"/{shop}/_doc/new"))["_source"]["ttc"]["hash"] == whole["ttc"]["hash"]
        await put(engine, shop, {"new": whole | {"title": "A dog"}})
        assert (await engine.request("GET", f"/{shop}/_doc/new"))["_source"]["ttc"].keys() == {"state", "stamp"}
        await update(engine, shop, "d1", {"price": 17})
        await engine.request("DELETE", f"/{shop}/_doc/new", params={"refresh": "true"})
        await update(engine, shop, "d1", {"price": corpus()["d1"]["price"]})
        [traces] = await traces_of(engine, shop)
        assert (traces.sides, traces.inside, traces.documents) == ((), True, 20)
        assert len(traces.staying) == 2
        done: list[tuple[int, int]] = []
        await detach(engine, traces, report=lambda *counts: done.append(counts))
        assert done[-1] == (20, 20)
        after = await state(engine, shop)
        mapping = after["index"][shop]["mappings"]
        assert mapping["properties"].pop("ttc")
        assert after == before
        assert mapping["_meta"] == MAPPING["_meta"]
    finally:
        await engine.request("PUT", f"/{shop}/_settings", body={"index.final_pipeline": None})
        for name in await pipelines(engine, shop):
            await engine.request("DELETE", f"/_ingest/pipeline/{name}")


async def test_a_side_index_outlives_its_source_until_it_is_detached(
    engine: Engine, shop: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    await engine.delete_index(shop)
    [traces] = await traces_of(engine, shop)
    assert len(traces.sides) == 1
    await detach(engine, traces)
    with pytest.raises(InvalidRequest, match="there is no index"):
        await traces_of(engine, shop)


async def test_an_index_of_our_own_is_no_attached_one(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await create_index(engine, index_name, spec)
    with pytest.raises(InvalidRequest, match="index delete"):
        await traces_of(engine, index_name)
    with pytest.raises(InvalidRequest, match="has features already"):
        await attach(engine, index_name, spec, encoder, inside=True)
    await remove_traces(engine, index_name)

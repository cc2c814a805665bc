"""Detaching leaves nothing: mapping, settings, pipelines, aliases and indices are what they were."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import detach, fill_attached, traces_of
from es_ttc.index.mappings.index import create_index
from es_ttc.index.mappings.spec import IndexSpec
from tests.attach.conftest import attach, pipelines


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
    assert len(traces.sides) == 1
    await detach(engine, traces)
    assert await state(engine, shop) == before
    assert not (await traces_of(engine, shop))[0].sides
    await detach(engine, traces)  # as after a lost answer
    assert await state(engine, shop) == before


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
    meta = {"ttc": {**spec.as_meta(), "inside": {}}}  # as an earlier build has attached features to the documents
    await engine.put_meta(index_name, meta)
    for refused in (traces_of(engine, index_name), fill_attached(engine, index_name, encoder)):
        with pytest.raises(InvalidRequest, match=r"reindex it without \[ttc\].*`es-ttc attach`"):
            await refused

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EsTtcError
from es_ttc.index.attach import FillResult, attach_beside, detach, traces_of
from es_ttc.index.attach.feature_locations import Indices, contents_of
from es_ttc.index.mappings.indices import Index, sides_of
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings

ON_ONE_ENGINE = True

COUNT = 30


@pytest.fixture
async def engines(engine_url: str, index_name: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two clients of one engine, with an index that people use."""
    first, second = [await connect(EngineSettings(engine=engine_url)) for _ in range(2)]
    mappings = {"properties": {"title": {"type": "text"}, "body": {"type": "text"}}}
    await first.create_index(index_name, {"mappings": mappings})
    for number in range(COUNT):
        body = {"title": f"number {number}", "body": "river and stone " * 5}
        await first.request("PUT", f"/{index_name}/_doc/{number}", body=body)
    yield first, second
    [found] = await traces_of(first, index_name)
    await detach(first, found)
    for client in (first, second):
        await client.close()


@pytest.fixture
def specs(encoder: Encoder) -> tuple[IndexSpec, IndexSpec]:
    one = IndexSpec(encoder.identity, text_fields=("title", "body"), max_tokens=64)
    return one, replace(one, codec="float16", text_fields=("body",))


@pytest.mark.parametrize("later", [0.0, 0.02])  # less than an attach takes
async def test_second_attach_with_other_options_is_refused(
    engines: tuple[Engine, Engine],
    specs: tuple[IndexSpec, IndexSpec],
    encoder: Encoder,
    index_name: str,
    later: float,
) -> None:
    async def attach(engine: Engine, spec: IndexSpec, wait: float) -> FillResult:
        await asyncio.sleep(wait)
        [source] = await Index.behind(engine, index_name)
        return await attach_beside(engine, source, spec, encoder)

    attaches = [attach(engine, spec, wait) for engine, spec, wait in zip(engines, specs, (0.0, later), strict=True)]
    ended = await asyncio.gather(*attaches, return_exceptions=True)
    [lost] = [one for one in ended if isinstance(one, BaseException)]
    assert isinstance(lost, EsTtcError)
    assert "other" in str(lost)
    [won] = [spec for spec, one in zip(specs, ended, strict=True) if isinstance(one, FillResult)]
    held = (await Indices.behind(engines[0], index_name)).only()
    assert held.spec == won
    await engines[0].refresh(held.index)
    assert (await contents_of(engines[0], held)).states == {"ready": COUNT}
    assert [side.index for side in await sides_of(engines[0], index_name)] == [held.index]


async def test_two_attaches_with_the_same_options_are_one(
    engines: tuple[Engine, Engine], specs: tuple[IndexSpec, IndexSpec], encoder: Encoder, index_name: str
) -> None:
    [source] = await Index.behind(engines[0], index_name)
    await attach_beside(engines[0], source, specs[1], encoder)
    begun = [asyncio.create_task(attach_beside(engine, source, specs[0], encoder)) for engine in engines[:1]]
    while len(await sides_of(engines[1], index_name)) < 2:
        assert not begun[0].done()
    begun.append(asyncio.create_task(attach_beside(engines[1], source, specs[0], encoder)))
    filled = await asyncio.gather(*begun)
    assert [one.failed for one in filled] == [0, 0]
    held = (await Indices.behind(engines[0], index_name)).only()
    assert held.spec == specs[0]
    assert [side.index for side in await sides_of(engines[0], index_name)] == [held.index]
    await engines[0].refresh(held.index)
    assert (await contents_of(engines[0], held)).states == {"ready": COUNT}

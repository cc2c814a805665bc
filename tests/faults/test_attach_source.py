from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import InvalidRequest
from es_ttc.index.attach import FillResult, attach_beside, detach, fill_attached, traces_of
from es_ttc.index.attach.feature_locations import Indices, contents_of
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings

TEXT = {"type": "text"}
FIELDS = {"title": TEXT, "body": TEXT}
TIME_SERIES = {
    "index.mode": "time_series",
    "index.routing_path": ["host"],
    "index.time_series.start_time": "2020-01-01T00:00:00Z",
    "index.time_series.end_time": "2030-01-01T00:00:00Z",
}
HOST = {"@timestamp": {"type": "date"}, "host": {"type": "keyword", "time_series_dimension": True}}
ES, OS = "elasticsearch", "opensearch"


@pytest.fixture
def spec(encoder: Encoder) -> IndexSpec:
    return IndexSpec(encoder.identity, text_fields=("title", "body"), max_tokens=64)


async def made(engine: Engine, name: str, mappings: Any, settings: Any = None, document: Any = None) -> None:
    """Make an index with one document."""
    await engine.create_index(name, {"mappings": mappings, "settings": settings or {}})
    body = document or {"title": "The cat", "body": "sleeps on the sofa"}
    await engine.request("POST", f"/{name}/_doc", params={"refresh": "true"}, body=body)


async def attached(engine: Engine, name: str, spec: IndexSpec, encoder: Encoder) -> tuple[FillResult, dict[str, int]]:
    [source] = await Index.behind(engine, name)
    filled = await attach_beside(engine, source, spec, encoder)
    held = (await Indices.behind(engine, name)).only()
    await engine.refresh(held.index)
    return filled, dict((await contents_of(engine, held)).states)


async def traces(engine: Engine, name: str) -> list[str]:
    params = {"expand_wildcards": "all", "ignore_unavailable": "true", "allow_no_indices": "true"}
    return list(await engine.request("GET", f"/ttc-*-{name}", params=params))


@pytest.mark.parametrize(
    ("mappings", "says"),
    [
        ({"_source": {"excludes": ["body"]}, "properties": FIELDS}, "excludes"),
        ({"_source": {"excludes": ["b*"]}, "properties": FIELDS}, "excludes"),
        ({"_source": {"includes": ["title"]}, "properties": FIELDS}, "includes"),
        ({"_source": {"enabled": False}, "properties": FIELDS}, "keeps no _source"),
        ({"properties": {"title": {"type": "text", "copy_to": "body"}, "body": TEXT}}, r"text of \[body\] is not in"),
        (
            {"properties": {"title": TEXT, "story": {"type": "keyword"}, "body": {"type": "alias", "path": "story"}}},
            r"name the field \[story\]",
        ),
        ({"properties": {"title": TEXT, "body": {"type": "integer_range"}}}, r"\[body\].* is an object"),
    ],
)
async def test_a_text_that_is_not_in_the_source_is_refused(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, mappings: Any, says: str
) -> None:
    document: dict[str, Any] = {"title": "The cat", "story": "sleeps"}
    if "_source" in mappings:
        document["body"] = "sleeps on the sofa"
    if mappings["properties"]["body"]["type"] == "integer_range":
        document["body"] = {"gte": 1}
    await made(engine, index_name, mappings, document=document)
    before = await engine.request("GET", f"/{index_name}")
    with pytest.raises(InvalidRequest, match=says):
        await attached(engine, index_name, spec, encoder)
    assert await engine.request("GET", f"/{index_name}") == before
    assert await traces(engine, index_name) == []
    assert (await Indices.behind(engine, index_name)).locations == [None]  # other commands say so


async def test_an_attached_index_that_is_made_anew_without_the_text_is_refused(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await made(engine, index_name, {"properties": FIELDS})
    await attached(engine, index_name, spec, encoder)
    await engine.delete_index(index_name)
    await made(engine, index_name, {"_source": {"excludes": ["body"]}, "properties": FIELDS})
    with pytest.raises(InvalidRequest, match=r"_source.excludes \[body\]"):
        await fill_attached(engine, index_name, encoder)
    [found] = await traces_of(engine, index_name)
    await detach(engine, found)


async def test_a_part_left_out_of_the_source_that_is_no_text_of_ours(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder
) -> None:
    mappings = {"_source": {"excludes": ["secret"]}, "properties": {**FIELDS, "secret": {"type": "keyword"}}}
    document = {"title": "The cat", "body": "sleeps", "secret": "s"}
    await made(engine, index_name, mappings, document=document)
    _, states = await attached(engine, index_name, spec, encoder)
    assert states == {"ready": 1}
    assert await engine.count(index_name, {"term": {"secret": "s"}}) == 1
    [found] = await traces_of(engine, index_name)
    await detach(engine, found)


@pytest.mark.parametrize(
    ("product", "settings", "more", "refused"),
    [
        (ES, {"index.mapping.source.mode": "disabled"}, {}, "keeps no _source"),
        (ES, {"index.mapping.source.mode": "synthetic"}, {}, None),
        (ES, {"index.mode": "logsdb"}, {"@timestamp": {"type": "date"}}, None),
        (ES, TIME_SERIES, HOST, None),
        (OS, {"index.derived_source.enabled": True}, {}, None),
        (OS, {"index.append_only.enabled": True}, {}, None),
    ],
)
async def test_kinds_of_source(
    request: pytest.FixtureRequest,
    index_name: str,
    spec: IndexSpec,
    encoder: Encoder,
    product: str,
    settings: Any,
    more: Any,
    refused: str | None,
) -> None:
    engine = await connect(EngineSettings(engine=request.getfixturevalue(f"{product}_url")))
    document = {"title": "The cat", "body": "sleeps on the  sofa", "@timestamp": "2025-01-01T00:00:00Z", "host": "h"}
    try:
        await made(engine, index_name, {"properties": {**FIELDS, **more}}, settings, document)
        if refused is not None:
            with pytest.raises(InvalidRequest, match=refused):
                await attached(engine, index_name, spec, encoder)
            return
        filled, states = await attached(engine, index_name, spec, encoder)
        assert (filled.failed, states) == (0, {"ready": 1})
        [found] = await traces_of(engine, index_name)
        await detach(engine, found)
        hits = [hit async for hit in engine.scan(index_name, {"match_all": {}}, source=["title", "body"])]
        assert [hit["_source"] for hit in hits] == [{"title": "The cat", "body": "sleeps on the  sofa"}]
    finally:
        await engine.close()

"""A further search that some shards do not answer: the response says so, and nothing of it is kept."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import attach_beside, detach, traces_of
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.graph import graph_alias
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import build_graph, delete_graphs
from es_ttc.settings import EngineSettings
from tests.serving.client import Reply, call
from tests.serving.conftest import make_index
from tests.serving.corpus import corpus
from tests.serving.relay import Passed, Relay, relay
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

CATS = "a cat drinks milk"
MATCH = {"query": {"match": {"text": "cat"}}, "size": 10}


@dataclass(frozen=True)
class LossyStack:
    """A gateway behind whose back shards are lost, an index with a graph, and one with attached features."""

    engine: str
    gateway: str
    relay: Relay
    index: str
    attached: str

    def search(self, body: dict[str, Any], index: str = "", query: str = "") -> Reply:
        return call(self.gateway, "POST", f"/{index or self.index}/_search{query}", body)


@pytest.fixture(scope="module")
def lossy(engine_url: str, encoder: Encoder) -> Iterator[LossyStack]:
    index, attached = (f"test-lost-{kind}-{uuid.uuid4().hex[:8]}" for kind in ("graph", "attached"))
    spec = make_index(engine_url, index, encoder)
    _with(engine_url, lambda engine: _prepare(engine, index, attached, spec, encoder))
    try:
        with relay(engine_url) as watched, gateway_to(watched.url, encoder, feature_cache_mb=0) as gateway:
            yield LossyStack(engine_url, gateway, watched, index, attached)
    finally:
        _with(engine_url, lambda engine: _remove(engine, index, attached))


def _with(url: str, work: Callable[[Engine], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected(EngineSettings(engine=url)) as engine:
            await work(engine)

    asyncio.run(run())


async def _prepare(engine: Engine, index: str, attached: str, spec: IndexSpec, encoder: Encoder) -> None:
    await build_graph(engine, index, GraphParams(degree=6, candidates=20))
    lines: list[bytes] = []
    for document in corpus():
        lines += [orjson.dumps({"index": {"_id": document.pop("_id")}}), orjson.dumps(document)]
    await engine.bulk(attached, lines)
    await engine.refresh(attached)
    [source] = await Index.behind(engine, attached)
    await attach_beside(engine, source, spec, encoder)


async def _remove(engine: Engine, index: str, attached: str) -> None:
    await delete_graphs(engine, index)
    for traces in await traces_of(engine, attached):
        await detach(engine, traces)
    for name in (index, attached):
        await engine.delete_index(name)


def losing(lossy: LossyStack, concerned: Callable[[Passed], bool]) -> list[Passed]:
    """Let the searches concerned lose a shard and half of their hits; return those that did."""
    lost: list[Passed] = []

    def before(request: Passed) -> Reply | None:
        if not concerned(request):
            return None
        kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        reply = call(lossy.engine, request.method, request.target, request.body, kept)
        answer = reply.json()
        answer["_shards"] |= {"failed": 1, "successful": answer["_shards"]["total"] - 1}
        hits = answer["hits"]["hits"]
        answer["hits"]["hits"] = hits[: len(hits) // 2]
        lost.append(request)
        return Reply(200, reply.headers, orjson.dumps(answer))

    lossy.relay.before = before
    return lost


@pytest.fixture(autouse=True)
def _none_lost(lossy: LossyStack) -> Iterator[None]:
    yield
    lossy.relay.before = lambda _: None
    lossy.relay.passed.clear()


@pytest.mark.parametrize("method", ["gar", "rgs"])
@pytest.mark.parametrize("which", ["neighbours", "documents"])
def test_lost_shards_of_a_graph_leave_the_walk_partial(lossy: LossyStack, method: str, which: str) -> None:
    concerned = {
        "neighbours": lambda request: graph_alias(lossy.index) in request.target,
        "documents": lambda request: b'"ids"' in request.body and b'"_index"' in request.body,
    }[which]
    section = {"method": method, "query_text": CATS, "params": {"reranker": "spectral", "budget": 30}}
    body = {**MATCH, "rescore": {"window_size": 10, "ttc": section}}
    whole = lossy.search(body)
    assert "reason" not in whole.json()["ttc"]
    lost = losing(lossy, concerned)
    told = lossy.search(body).json()["ttc"]
    assert lost
    assert told["strategy"]["graph"] == "unreadable"
    assert "shards did not answer" in told["reason"]
    assert told["partial"] or not told["applied"]
    lossy.relay.before = lambda _: None
    again = lossy.search(body)
    assert (again.ids, again.scores) == (whole.ids, whole.scores)


def test_lost_shards_of_attached_features_leave_the_first_pass(lossy: LossyStack) -> None:
    body = {**MATCH, "rescore": {"ttc": {"method": "spectral", "query_text": CATS}}}
    whole = lossy.search(body, lossy.attached)
    assert whole.json()["ttc"]["applied"], whole.body
    written = f"/{lossy.attached}/_update/{whole.ids[0]}?refresh=true"  # marks of other documents are known by now
    assert call(lossy.engine, "POST", written, {"doc": {"again": 1}}).status == 200
    lost = losing(lossy, lambda request: side_alias(lossy.attached) in request.target and b'"ids"' in request.body)
    told = lossy.search(body, lossy.attached).json()["ttc"]
    assert lost
    assert not told["applied"]
    assert "shards did not answer" in told["reason"]


def test_lost_shards_of_candidates_leave_the_first_pass(lossy: LossyStack) -> None:
    """Their hits are read after they were ranked; without a shard there, the answer is that to the caller's search."""
    section = {"method": "dense", "query_text": "bees in the snow", "candidates": {"knn": 30}}
    body = {**MATCH, "rescore": {"window_size": 10, "ttc": section}}
    whole = lossy.search(body)
    assert whole.json()["ttc"]["applied"]
    lost = losing(lossy, lambda request: b'"should":' in request.body and b'"terms":{"ttc.hash"' in request.body)
    plain = lossy.search(body)
    assert lost
    assert plain.json()["_shards"]["failed"] == 0
    assert plain.json()["ttc"]["applied"] is False
    assert "lost shards" in plain.json()["ttc"]["reason"]
    assert plain.ids == lossy.search(MATCH).ids


def test_lost_shards_of_feedback_leave_the_plain_query(lossy: LossyStack) -> None:
    body = {"query": {"ttc": {"method": "rm3", "query_text": CATS, "params": {"tau": 1.0, "weight": 0.5}}}}
    lost = losing(lossy, lambda request: b'"_source":["title","text"]' in request.body)
    told = lossy.search(body).json()["ttc"]
    assert lost
    assert told["applied"] is False
    assert "shards did not answer" in told["reason"]
    lossy.relay.before = lambda _: None
    sound = lossy.search(body).json()["ttc"]
    assert (sound["applied"], sound["cached"]) == (True, False)
    assert sound["terms"]


def test_further_searches_are_run_as_the_callers_own(lossy: LossyStack) -> None:
    """Feedback by each shard's own statistics would be that of other documents."""
    body = {"query": {"ttc": {"method": "rm3", "query_text": f"{CATS} at night", "params": {"tau": 1.0}}}}
    assert lossy.search(body).json()["ttc"]["cached"] is False
    lossy.relay.passed.clear()
    dfs = lossy.search(body, query="?search_type=dfs_query_then_fetch").json()["ttc"]
    assert dfs["cached"] is False
    searches = [request.target for request in lossy.relay.passed if "/_search" in request.target]
    assert len(searches) > 1
    assert all("search_type=dfs_query_then_fetch" in target for target in searches)
    header = {"search_type": "dfs_query_then_fetch", "index": lossy.index}
    several = call(lossy.gateway, "POST", "/_msearch", [header, body])
    assert several.json()["responses"][0]["ttc"]["cached"] is True

"""Walks through the gateway, against both engines: who is found and shown, what is kept from a caller, what fails."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import attach_beside, detach, traces_of
from es_ttc.index.mappings.indices import Index
from es_ttc.reranking.graph import GraphParams
from es_ttc.reranking.index_graph import BuildProgress, build_graph, delete_graphs, serving_graph
from es_ttc.reranking.index_graph.store import nodes, write_nodes
from es_ttc.settings import EngineSettings
from tests.conftest import PRODUCTS
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import corpus
from tests.support.gateway import gateway_to
from tests.support.servers import server_beside

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

TROUT = {"match": {"title": "trout"}}
"""Finds ten documents of sixty; the texts of others are near to theirs."""


@dataclass
class Judge:
    """A reranker behind HTTP that likes bees, owls and dogs, in this order, with the faults that it is told.

    Attributes:
        url: Its address.
        fault: What is wrong with its answers from call number ``sound`` on.
        sound: Calls that are answered well.
        asked: The documents of every call.
    """

    url: str = ""
    fault: str = ""
    sound: int = 10**9
    asked: list[list[str]] = field(default_factory=list)

    def answer(self, documents: list[str]) -> Any:
        self.asked.append(documents)
        results: list[dict[str, Any]] = [
            {"index": at, "relevance_score": liked(text)} for at, text in enumerate(documents)
        ]
        if len(self.asked) <= self.sound:
            return {"results": results, "usage": {"total_tokens": 100}}
        match self.fault:
            case "late":
                time.sleep(1.5)
            case "nan":
                return b'{"results": [{"index": 0, "relevance_score": NaN}]}'
            case "infinite":
                results[0]["relevance_score"] = "Infinity"
            case "fewer":
                results.pop()
            case "twice":
                results[-1] = results[0]
            case "down":
                return None
        return {"results": results}


def liked(text: str) -> float:
    """Return a score that has nothing to do with trouts."""
    return sum(weight * text.lower().count(word) for word, weight in (("bee", 0.3), ("owl", 0.2), ("dog", 0.1)))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    state = Judge()

    def answer(_: str, body: bytes) -> tuple[int, Any]:
        found = state.answer(orjson.loads(body)["documents"])
        return 200 if found is not None else 500, found

    with server_beside(answer) as url:
        state.url = f"{url}/rerank"
        yield state


@pytest.fixture
def sound(judge: Judge) -> Judge:
    """The judge without faults."""
    judge.fault, judge.sound = "", 10**9
    judge.asked.clear()
    return judge


@pytest.fixture(scope="module")
def walking(engine_url: str, encoder: Encoder, judge: Judge) -> Iterator[SearchStack]:
    """An index with a graph, an alias of a part of it, and a gateway that knows the judge."""
    import uuid

    name = f"test-walks-{uuid.uuid4().hex[:8]}"
    spec = make_index(engine_url, name, encoder)
    asyncio.run(_with(engine_url, lambda engine: build_graph(engine, name, GraphParams(degree=6, candidates=20))))
    shown = {"bool": {"must_not": [{"match": {"title": "bee"}}]}}
    call(
        engine_url, "POST", "/_aliases", {"actions": [{"add": {"index": name, "alias": f"{name}-a", "filter": shown}}]}
    )
    try:
        with gateway_to(
            engine_url,
            encoder,
            max_window=300,
            rerankers={
                "judge": {"kind": "http", "url": judge.url, "batch": 5, "at_once": 1, "timeout_ms": 700},
                "nobody": {"kind": "http", "url": "http://127.0.0.1:9/"},
            },
        ) as gateway:
            yield SearchStack(engine_url, gateway, name, spec)
    finally:
        asyncio.run(_with(engine_url, lambda engine: delete_graphs(engine, name)))
        call(engine_url, "DELETE", f"/{name}")


async def _with(url: str, work: Any) -> Any:
    async with connected(EngineSettings(engine=url)) as engine:
        return await work(engine)


def walk(stack: SearchStack, index: str = "", **changes: Any) -> Reply:
    """Run a search whose method walks; ``ttc`` and ``params`` of the changes go into the section."""
    text = f"trout and something {time.monotonic_ns()}"
    params = {"reranker": "judge", "budget": 40, "seeds": 5, **changes.pop("params", {})}
    section = {"method": "rgs", "query_text": text, "params": params, **changes.pop("ttc", {})}
    body = {"query": TROUT, "size": 10, "rescore": {"window_size": 10, "ttc": section}, **changes}
    return call(stack.gateway, "POST", f"/{index or stack.index}/_search", body)


def told(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    summary: dict[str, Any] = reply.json()["ttc"]
    return summary


@pytest.mark.parametrize("method", ["gar", "rgs", "rr"])
@on_both
def test_documents_that_the_query_misses_are_found_and_shown_as_any_other(
    walking: SearchStack, sound: Judge, method: str
) -> None:
    query = {
        "bool": {"should": [{"match": {"title": {"query": "trout", "_name": "fish"}}}, {"match": {"text": "milk"}}]}
    }
    body = {
        "query": {"bool": {"must": [query], "filter": [{"range": {"number": {"lt": 58}}}]}},
        "highlight": {"fields": {"text": {}}},
        "aggs": {"groups": {"terms": {"field": "group.keyword"}}},
        "fields": ["number"],
        "_source": ["title"],
        "explain": True,
    }
    allowed = {} if method == "rgs" else {"seeds": None}
    params = {"reranker": "judge", "budget": 40, **({"seeds": 5} if not allowed else {})}
    section = {"method": method, "query_text": f"trout {method}", "params": params, "detail": True}
    reply = call(
        walking.gateway, "POST", f"/{walking.index}/_search",
        {**body, "size": 15, "rescore": {"window_size": 10, "ttc": section}},
    )  # fmt: skip
    summary = told(reply)
    plain = call(walking.engine, "POST", f"/{walking.index}/_search", {**body, "size": 15}).json()
    answer = reply.json()
    hits = answer["hits"]["hits"]
    assert answer["aggregations"] == plain["aggregations"]
    assert answer["hits"]["total"] == plain["hits"]["total"]
    assert len(hits) == len({hit["_id"] for hit in hits}) == 15
    scores = [hit["_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert answer["hits"]["max_score"] == scores[0]
    assert summary["applied"]
    assert summary["strategy"]["spent"] == sum(map(len, sound.asked)) <= 40
    outside = [hit for hit in hits if hit["_ttc"]["first_pass_rank"] is None]
    if method == "rr":
        assert not outside
        assert summary["scored"] == 10
        return
    assert outside
    assert summary["strategy"]["outside"] >= len(outside)
    for hit in hits:
        assert hit["_explanation"]["value"] == hit["_score"]
        assert set(hit["_source"]) <= {"title"}
        assert hit["fields"].keys() == {"number"}
        assert hit["fields"]["number"][0] < 58
        assert "_version" not in hit
    milk = [hit for hit in hits if "milk" in " ".join(hit.get("highlight", {}).get("text", []))]
    assert milk
    assert all("<em>milk</em>" in hit["highlight"]["text"][0] for hit in milk)
    best = max(liked(f"{one['title']} {one['text']}") for one in texts(walking))
    assert summary["strategy"]["calls"][0].keys() >= {"_id", "score"}
    assert [one["_id"] for one in summary["strategy"]["calls"] if "from" in one]
    assert max(one["score"] for one in summary["strategy"]["calls"]) == pytest.approx(
        min(best, hits[0]["_score"]), abs=1e-5
    )


def texts(stack: SearchStack) -> list[dict[str, Any]]:
    answer = call(stack.engine, "POST", f"/{stack.index}/_search", {"size": 100, "query": {"match_all": {}}}).json()
    return [hit["_source"] for hit in answer["hits"]["hits"]]


def test_pages_follow_each_other_without_a_gap(walking: SearchStack, sound: Judge) -> None:
    section = {"query_text": "pages of trouts"}
    everything = {"bool": {"should": [TROUT, {"match_all": {}}]}}
    whole = walk(walking, query=everything, size=60, ttc=section)
    assert told(whole)["strategy"]["outside"] == 0 or len(whole.ids) == 60
    calls = len(sound.asked)
    pages = []
    for start in range(0, 63, 7):
        page: dict[str, Any] = {"query": everything, "size": 7, "ttc": section, "from": start}
        pages.append(walk(walking, **page))
    assert [one for page in pages for one in page.ids] == whole.ids
    assert sorted(whole.ids) == sorted(f"d{number}" for number in range(60))
    assert len(sound.asked) == calls  # what was judged is remembered


@pytest.mark.parametrize(("field", "groups"), [("group.keyword", 7), ("number", 60)])
@pytest.mark.parametrize("size", [2, 25])
def test_groups_are_decided_by_the_walks_order(
    walking: SearchStack, sound: Judge, field: str, groups: int, size: int
) -> None:
    """Of a number each document is a group, so the engine's own groups have those that the walk has found again."""
    section = {
        "method": "rgs",
        "query_text": f"groups by {field}",
        "params": {"reranker": "judge", "budget": 15, "seeds": 5},
    }
    body = {
        "query": {"bool": {"should": [TROUT, {"match_all": {}}]}},
        "rescore": {"window_size": 6, "ttc": {**section, "detail": True}},
        "docvalue_fields": [field],
    }
    whole = call(walking.gateway, "POST", f"/{walking.index}/_search", {**body, "size": 60}).json()["hits"]["hits"]
    expected: dict[Any, str] = {}
    for hit in whole:
        expected.setdefault(hit["fields"][field][0], hit["_id"])
    hits: list[dict[str, Any]] = []
    outside = 0
    for start in range(0, groups, size):
        page = {**body, "size": size, "from": start, "collapse": {"field": field}}
        reply = call(walking.gateway, "POST", f"/{walking.index}/_search", page)
        outside = max(outside, told(reply)["strategy"]["outside"])
        hits += reply.json()["hits"]["hits"]
    assert outside > 0 or size > 6
    assert {hit["fields"][field][0]: hit["_id"] for hit in hits} == expected
    assert [hit["_id"] for hit in hits] == list(expected.values())
    scores = [hit["_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_without_a_reranker_the_groups_are_the_engines(walking: SearchStack) -> None:
    collapse = {"query": TROUT, "collapse": {"field": "group.keyword"}}
    body = {**collapse, "rescore": {"ttc": {"method": "gar", "params": {"reranker": "nobody"}, "timeout": "900ms"}}}
    reply = call(walking.gateway, "POST", f"/{walking.index}/_search", body)
    assert not told(reply)["applied"]
    direct = call(walking.engine, "POST", f"/{walking.index}/_search", collapse)
    assert (reply.ids, reply.scores) == (direct.ids, direct.scores)


def test_a_method_of_this_project_judges_by_stored_features(walking: SearchStack) -> None:
    reply = walk(walking, size=20, params={"reranker": "spectral"}, ttc={"query_text": "a bee sings before rain"})
    summary = told(reply)
    assert summary["encoder"]
    assert summary["strategy"]["outside"] > 0
    window = {"window_size": 60, "ttc": {"method": "spectral", "query_text": "a bee sings before rain"}}
    everything = {"bool": {"should": [TROUT, {"match_all": {}}]}}
    body = {"query": everything, "size": 60, "rescore": window}
    all_scores = call(walking.gateway, "POST", f"/{walking.index}/_search", body)
    by_id = dict(zip(all_scores.ids, all_scores.scores, strict=True))
    judged = dict(zip(reply.ids, reply.scores, strict=True))
    assert judged == {one: pytest.approx(by_id[one], abs=1e-6) for one in judged}
    assert reply.ids[0] == all_scores.ids[0]  # which the first pass did not find
    slide = walk(walking, ttc={"method": "slidegar", "query_text": "bee"}, params={"reranker": "dense", "seeds": None})
    assert slide.status == 400
    params = {"reranker": "dense", "budget": 40}
    section = {"method": "slidegar", "query_text": "a bee sings", "params": params}
    body = {"query": TROUT, "rescore": {"window_size": 10, "ttc": section}}
    found = told(call(walking.gateway, "POST", f"/{walking.index}/_search", body))
    assert found["strategy"]["outside"] > 0
    assert found["strategy"]["spent"] <= 40


@on_both
def test_a_filtered_alias_hides_its_documents_from_answer_and_walk(walking: SearchStack, sound: Judge) -> None:
    free = told(walk(walking, ttc={"detail": True}, params={"budget": 60}))
    assert any("The bee" in text for documents in sound.asked for text in documents)
    hidden = {one["_id"] for one in all_hits(walking) if "bee" in one["_source"]["title"].lower()}
    assert hidden & {one["_id"] for one in free["strategy"]["calls"]}
    sound.asked.clear()
    reply = walk(walking, f"{walking.index}-a", ttc={"detail": True}, params={"budget": 60}, size=50)
    summary = told(reply)
    assert summary["strategy"]["outside"] > 0
    assert not any("The bee" in text for documents in sound.asked for text in documents)
    assert not hidden & set(reply.ids)
    calls = summary["strategy"]["calls"]
    assert not hidden & ({one["_id"] for one in calls} | {one.get("from") for one in calls})
    assert not any(identifier.encode() + b'"' in reply.body for identifier in sorted(hidden))


def all_hits(stack: SearchStack) -> list[dict[str, Any]]:
    answer = call(stack.engine, "POST", f"/{stack.index}/_search", {"size": 100, "query": {"match_all": {}}}).json()
    hits: list[dict[str, Any]] = answer["hits"]["hits"]
    return hits


@pytest.mark.parametrize(
    "bound",
    [
        {"query": {"bool": {"must": [TROUT], "filter": [{"range": {"number": {"gte": 10}}}]}}},
        {"query": {"bool": {"must": [TROUT, {"range": {"number": {"gte": 10}}}]}}},
        {"query": {"bool": {"must": [TROUT], "must_not": [{"range": {"number": {"lt": 10}}}]}}},
        {"query": TROUT, "post_filter": {"range": {"number": {"gte": 10}}}},
        {
            "query": {
                "function_score": {"query": {"bool": {"must": TROUT, "filter": {"range": {"number": {"gte": 10}}}}}}
            }
        },
    ],
)
@on_both
def test_walk_shows_only_documents_that_match_filters(
    walking: SearchStack, sound: Judge, bound: dict[str, Any]
) -> None:
    reply = walk(walking, size=40, _source=["number"], **bound)
    assert told(reply)["strategy"]["outside"] > 0
    assert all(hit["_source"]["number"] >= 10 for hit in reply.json()["hits"]["hits"])


@pytest.mark.parametrize("fault", ["late", "nan", "infinite", "fewer", "twice", "down"])
def test_a_failing_reranker_leaves_what_was_ranked_so_far(walking: SearchStack, sound: Judge, fault: str) -> None:
    sound.fault, sound.sound = fault, 2
    reply = walk(walking, ttc={"timeout": "3s"})
    summary = told(reply)
    assert summary["applied"]
    assert summary["partial"]
    assert summary["reason"]
    assert summary["strategy"]["stopped"] == "failed"
    assert 5 <= summary["scored"] <= 10
    assert summary["strategy"]["spent"] <= 40
    assert reply.headers["x-ttc-applied"] == "true"
    scores = [hit["_score"] for hit in reply.json()["hits"]["hits"]]
    assert len(scores) >= 10
    assert scores == sorted(scores, reverse=True)
    sound.asked.clear()
    sound.sound = 0
    nothing = walk(walking)
    assert not told(nothing)["applied"]
    plain = call(walking.engine, "POST", f"/{walking.index}/_search", {"query": TROUT, "size": 10})
    assert (nothing.ids, nothing.scores) == (plain.ids, plain.scores)
    refused = walk(walking, ttc={"on_error": "fail"})
    assert refused.status >= 500
    assert refused.reason


def test_a_deadline_ends_the_walk_with_what_it_has(walking: SearchStack, sound: Judge) -> None:
    sound.fault, sound.sound = "late", 1
    began = time.monotonic()
    summary = told(walk(walking, ttc={"timeout": "400ms"}))
    assert time.monotonic() - began < 1.2
    assert (summary["scored"], summary["partial"]) == (5, True)
    assert "time was over" in summary["reason"]


@pytest.mark.parametrize(("method", "most", "calls"), [("rr", 90, 1), ("gar", 150, 2), ("slidegar", 150, 2)])
def test_walk_reports_the_cost_of_the_reranker_and_stops_at_its_bound(
    walking: SearchStack, sound: Judge, method: str, most: int, calls: int
) -> None:
    params: dict[str, Any] = {"reranker": "judge", "budget": 40}
    section = {"method": method, "query_text": f"cost of {method}", "params": params}
    body = {"query": TROUT, "rescore": {"window_size": 10, "ttc": section}}
    bound = {**section, "params": {**params, "max_tokens": most}}
    answer = call(walking.gateway, "POST", f"/{walking.index}/_search", {**body, "rescore": {"ttc": bound}})
    cheap = told(answer)
    assert cheap["strategy"]["cost"] == {"calls": calls, "prompt_tokens": 100 * calls}
    assert (cheap["strategy"]["stopped"], cheap["scored"], cheap["strategy"]["spent"]) == ("cost", 5 * calls, 5 * calls)
    assert cheap["applied"]
    assert "partial" not in cheap
    whole = told(call(walking.gateway, "POST", f"/{walking.index}/_search", body))["strategy"]
    rest = len(sound.asked) - calls
    assert whole["cost"] == {"calls": rest, "prompt_tokens": 100 * rest}
    again = told(call(walking.gateway, "POST", f"/{walking.index}/_search", body))["strategy"]
    assert again["cost"] == {"calls": 0}  # all of it was remembered


def test_neighbours_that_no_longer_exist_are_passed_over(walking: SearchStack, sound: Judge) -> None:
    async def spoil(engine: Engine) -> Any:
        serving = await serving_graph(engine, walking.index)
        assert serving is not None
        await engine.refresh(serving[0])
        kept = await nodes(engine, serving[0], [f"d{number}" for number in range(60)], vectors=True)
        from dataclasses import replace

        ghosts = [replace(one, neighbours=("ghost-1", *one.neighbours, "ghost-2", one.id)) for one in kept.values()]
        await write_nodes(engine, serving[0], ghosts)
        await engine.refresh(serving[0])
        return serving[0], list(kept.values())

    graph, before = asyncio.run(_with(walking.engine, spoil))
    try:
        reply = walk(walking, params={"budget": 60}, ttc={"detail": True})
        summary = told(reply)
        assert summary["strategy"]["outside"] > 0
        assert "partial" not in summary
        assert not any(one["_id"].startswith("ghost") for one in summary["strategy"]["calls"])
        assert len(summary["strategy"]["calls"]) == len({one["_id"] for one in summary["strategy"]["calls"]})
    finally:
        asyncio.run(_with(walking.engine, lambda engine: write_nodes(engine, graph, before)))
        call(walking.engine, "POST", f"/{graph}/_refresh")


def test_a_missing_graph_is_told_and_a_half_built_one_leaves_the_first_pass_reranked(
    walking: SearchStack, sound: Judge, index_name: str, encoder: Encoder
) -> None:
    make_index(walking.engine, index_name, encoder)
    for method in ("rgs", "gar", "slidegar"):
        section = {"method": method, "params": {"reranker": "judge"}}
        body = {"query": TROUT, "rescore": {"ttc": {**section, "on_error": "fail"}}}
        lacking = call(walking.gateway, "POST", f"/{index_name}/_search", body)
        assert lacking.status == 400, lacking.body
        assert lacking.json()["error"]["type"] == "ttc_missing_feature_exception"
        assert f"`es-ttc graph build {index_name}`" in lacking.reason
    assert not sound.asked  # nothing was paid for it
    both = walk(walking, f"{walking.index},{index_name}", size=40)
    assert told(both)["partial"]
    assert told(both)["strategy"]["outside"] > 0

    def stop(so_far: BuildProgress) -> None:
        if so_far.doing == "finding neighbours" and so_far.done:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_with(walking.engine, lambda engine: build_graph(engine, index_name, report=stop)))
    try:
        reply = walk(walking, index_name)
        summary = told(reply)
        assert (summary["applied"], summary["partial"], summary["scored"]) == (True, True, 10)
        assert summary["strategy"] | {"graph": "missing", "outside": 0} == summary["strategy"]
        assert f"`es-ttc graph build {index_name}`" in summary["reason"]
    finally:
        asyncio.run(_with(walking.engine, lambda engine: delete_graphs(engine, index_name)))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"params": {"reranker": "jugde"}}, "[judge]"),
        ({"params": {"reranker": "judge", "reranker_params": {"a": 1}}}, "has its settings"),
    ],
)
def test_walk_with_an_invalid_reranker_is_refused(walking: SearchStack, section: dict[str, Any], why: str) -> None:
    body = {"query": TROUT, "rescore": {"ttc": {"method": "rgs", **section}}}
    reply = call(walking.gateway, "POST", f"/{walking.index}/_search", body)
    assert reply.status == 400
    assert why in reply.reason


def test_an_msearch_walks_too(walking: SearchStack, sound: Judge) -> None:
    section = {"method": "rgs", "query_text": "an msearch", "params": {"reranker": "judge", "seeds": 5}}
    lines = [
        {"index": walking.index},
        {"query": TROUT, "rescore": {"window_size": 10, "ttc": section}},
        {"index": walking.index},
        {"query": TROUT},
        {"index": f"{walking.index}-a"},
        {"query": TROUT, "size": 50, "rescore": {"window_size": 10, "ttc": section}},
    ]
    reply = call(walking.gateway, "POST", "/_msearch", lines)
    first, plain, filtered = reply.json()["responses"]
    assert first["ttc"]["strategy"]["outside"] > 0
    assert "ttc" not in plain
    titles = [hit["_source"]["title"] for hit in filtered["hits"]["hits"]]
    assert filtered["ttc"]["strategy"]["outside"] > 0
    assert not any("bee" in title for title in titles)


@on_both
def test_an_index_that_people_use_is_walked_through_by_its_side_index(
    walking: SearchStack, sound: Judge, index_name: str, encoder: Encoder
) -> None:
    async def attach(engine: Engine) -> None:
        lines = []
        for document in corpus():
            identifier = document.pop("_id")
            lines += [orjson.dumps({"index": {"_id": identifier}}), orjson.dumps(document)]
        await engine.bulk(index_name, lines)
        await engine.refresh(index_name)
        [source] = await Index.behind(engine, index_name)
        await attach_beside(engine, source, walking.spec, encoder)
        await build_graph(engine, index_name, GraphParams(degree=6, candidates=20))

    async def remove(engine: Engine) -> None:
        await delete_graphs(engine, index_name)
        for traces in await traces_of(engine, index_name):
            await detach(engine, traces)

    asyncio.run(_with(walking.engine, attach))
    try:
        for reranker in ("judge", "spectral"):
            reply = walk(walking, index_name, params={"reranker": reranker}, ttc={"query_text": "a bee sings"})
            summary = told(reply)
            assert summary["strategy"]["graph"] == "read"
            assert summary["strategy"]["outside"] > 0
            assert "partial" not in summary
        assert any("The bee" in text for documents in sound.asked for text in documents)
        hidden = call(walking.engine, "GET", "/_cat/indices?format=json&h=index").json()
        assert not [one["index"] for one in hidden if "neighbours" in one["index"] and index_name in one["index"]]
    finally:
        asyncio.run(_with(walking.engine, remove))

"""The knn hook over attached indices: what it finds, and that nothing gets past the source, filter and rights."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from es_ttc.cli.calibrate import _calibrate
from es_ttc.cli.searching import CliQuery, SearchTarget, compare_methods
from es_ttc.cli.searching import search_by_method as cli_search
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.index.attach import fill_attached
from es_ttc.index.attach.feature_locations import Indices
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.retrievers import registry
from es_ttc.serving.candidates import targets
from es_ttc.settings import EngineSettings
from tests.attach.conftest import FIELDS, attach, put, update
from tests.attach.test_beside import ask, native, scores
from tests.attach.test_kinds import append, attach_all, rolled  # noqa: F401 - a fixture
from tests.serving.client import Reply, call, search
from tests.serving.corpus import CATS
from tests.serving.relay import Passed, Relay, relay
from tests.support.gateway import gateway_to

DEAR = {"range": {"price": {"gte": 10}}}
"""Half of the documents, the nearest to the question not among them."""
CHEAPEST = {"terms": {"price": [0, 19]}}
BESIDE = b'{"index":"ttc-'
"""In the body of what is asked of side indices."""
UNAVAILABLE = Reply(503, {"content-type": "application/json"}, b'{"error": "busy"}')


def clause(method: str | None = "dense", **told: Any) -> dict[str, Any]:
    section = {} if method is None else {"ttc": {"method": method, **told.pop("ttc", {})}}
    return {"field": "ttc.vector", "query_text": CATS, "k": 5, **section, **told}


def find(gateway: str, index: str, method: str | None = "dense", **told: Any) -> Reply:
    return search(gateway, index, {"knn": clause(method, **told), "size": 40, "_source": False})


@pytest.fixture(scope="session")
def spanned(spec: IndexSpec) -> IndexSpec:
    return replace(spec, spans=(SpanGrid(5, 3),))


@pytest.fixture
async def attached(engine: Engine, shop: str, spanned: IndexSpec, encoder: Encoder) -> str:
    await attach(engine, shop, spanned, encoder)
    return shop


@pytest.fixture(scope="session")
def watched(engine_url: str) -> Iterator[Relay]:
    with relay(engine_url) as state:
        yield state


@pytest.fixture
def relayed(watched: Relay) -> Iterator[Relay]:
    yield watched
    watched.before = lambda _: None
    watched.passed.clear()


@pytest.fixture(scope="session")
def through_relay(watched: Relay, encoder: Encoder) -> Iterator[str]:
    """A gateway with credentials of its own for side indices; it keeps no features."""
    with gateway_to(watched.url, encoder, feature_cache_mb=0, side_index_auth="gateway", api_key="c2VydmljZQ==") as url:
        yield url


async def test_knn_over_side_index_equals_an_index_with_vectors(
    engine: Engine, attached: str, gateway: str, spanned: IndexSpec, encoder: Encoder
) -> None:
    await native(engine, f"{attached}-native", spanned, encoder)
    for method in registry.names():
        for told in ({}, {"k": 40}, {"filter": DEAR}, {"filter": [DEAR, CHEAPEST]}, {"similarity": 0.3, "boost": 2}):
            exact = {"ttc": {"params": {"exact": True}}} if method in ("dense", "nnn", "spectral") else {}
            expected = find(gateway, f"{attached}-native", method, **told, **exact)
            got = find(gateway, attached, method, **told, **exact)
            assert got.json()["ttc"]["applied"] is True
            assert scores(got) == pytest.approx(scores(expected), abs=1e-5), (method, told)
            assert got.json()["ttc"].get("certified") == expected.json()["ttc"].get("certified")
    text = find(gateway, attached, None)
    assert scores(text) == pytest.approx(scores(find(gateway, f"{attached}-native")), abs=1e-5)
    both = find(gateway, f"{attached}*", "dense", k=6, ttc={"params": {"exact": True}})
    twice = scores(find(gateway, attached, "dense", k=3))
    assert [hit["_id"] for hit in both.json()["hits"]["hits"][::2]] == [*twice]
    assert len({hit["_index"] for hit in both.json()["hits"]["hits"]}) == 2


@pytest.mark.parametrize("few", [0, 1000], ids=["filter afterwards", "filter first"])
async def test_knn_over_side_index_reads_no_hidden_document(
    engine: Engine, attached: str, through_relay: str, relayed: Relay, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(targets, "_FEW", few)
    alias = f"{attached}-dear"
    actions = [{"add": {"index": attached, "alias": alias, "filter": DEAR}}]
    await engine.request("POST", "/_aliases", body={"actions": actions})
    ready = {"query": {"term": {"ttc.state": "ready"}}, "size": 40, "docvalue_fields": ["ttc.id", "ttc.hash"]}
    marks = (await engine.search(f"ttc-side-{attached}", ready))["hits"]["hits"]
    hashes = {hit["fields"]["ttc.id"][0]: hit["fields"]["ttc.hash"][0] for hit in marks}
    hidden = {hashes[f"d{number}"] for number in range(10) if number != 7}
    for method in registry.names():
        for told in ({}, {"filter": {"bool": {"must_not": [{"term": {"price": 15}}]}}}):
            relayed.passed.clear()
            reply = find(through_relay, alias, method, k=40, ttc={"detail": True}, **told)
            expected = {f"d{number}" for number in range(10, 20)} - ({"d15"} if told else set())
            assert set(reply.ids) == expected
            assert '"d1"' not in json.dumps(reply.json())
            assert relayed.passed[-1].target.startswith(f"/{alias}/_search")
            for request in relayed.passed:
                if request.target == "/" or request.target.startswith("/_nodes/stats/jvm"):  # product and heap
                    continue
                beside = BESIDE in request.body or request.target.startswith("/ttc-")
                service = "c2VydmljZQ==" in request.headers.get("authorization", "")
                assert service is (beside or "/_settings/index.uuid" in request.target)
                assert beside or not service or request.method == "GET"
                if request.reads_features:
                    assert not any(one.encode() in request.body for one in hidden)
    few_only = find(through_relay, alias, "dense", k=3, filter=CHEAPEST)
    assert few_only.ids == ["d19"]


async def test_more_neighbours_are_asked_for_until_enough_match(
    attached: str, through_relay: str, relayed: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_FEW", 0)

    def asked_of_the_side() -> list[int]:
        lines = [line for one in relayed.passed if BESIDE in one.body for line in one.body.splitlines()]
        return [body["size"] for body in map(json.loads, lines) if body.get("size")]

    far = {"range": {"price": {"gte": 16}}}
    reply = find(through_relay, attached, "dense", k=2, filter=far, ttc={"params": {"exact": True}})
    assert len(reply.ids) == 2
    assert reply.ids == [*scores(find(through_relay, attached, "dense", k=40, filter=far))][:2]
    assert len(asked_of_the_side()) > 1
    relayed.passed.clear()
    assert len(find(through_relay, attached, "dense", k=2).ids) == 2
    assert asked_of_the_side() == [2]


async def test_vectors_of_another_text_do_not_rank(
    engine: Engine, attached: str, gateway: str, encoder: Encoder
) -> None:
    before = scores(find(gateway, attached, k=40))
    await update(engine, attached, "d1", {"price": 99})
    await update(engine, attached, "d2", {"body": "Our horse runs in the snow."})
    await engine.request("DELETE", f"/{attached}/_doc/d3", params={"refresh": "true"})
    await put(engine, attached, {"new": {"title": "The cat", "body": "It drinks milk."}})
    for method in registry.names():
        reply = find(gateway, attached, method, k=40)
        assert set(reply.ids) == before.keys() - {"d2", "d3"}, method
        assert reply.json()["ttc"]["stale"] == 1
    reply = find(gateway, attached, k=3)  # two of the three nearest are passed over
    kept = [one for one in before if one not in ("d2", "d3")][:3]
    assert scores(reply) == pytest.approx({one: before[one] for one in kept}, abs=1e-6)
    await fill_attached(engine, attached, encoder)
    reply = find(gateway, attached, k=40)
    assert reply.json()["ttc"].get("stale") is None
    assert set(reply.ids) == {*before, "new"} - {"d3"}
    assert scores(reply)["d2"] < before["d2"]


async def test_knn_over_side_index_without_matches_is_not_certified(
    engine: Engine, attached: str, gateway: str
) -> None:
    reply = find(gateway, attached, "nnn", filter={"term": {"price": 10**6}})
    ttc = reply.json()["ttc"]
    assert (reply.ids, ttc["certified"], ttc["stopped_by"]) == ([], False, "empty")


async def test_data_streams_points_in_time_and_several_searches(
    engine: Engine,
    rolled: str,  # noqa: F811
    gateway: str,
    spec: IndexSpec,
    encoder: Encoder,
) -> None:
    await attach_all(engine, rolled, spec, encoder)
    await engine.request("POST", f"/{rolled}/_rollover")
    await append(engine, rolled, {"new": {"title": "The cat", "body": "Which cat drinks milk?"}})
    assert "new" not in find(gateway, rolled, k=40).ids  # the new index has no side index until it gets one
    assert len((await Indices.behind(engine, rolled)).present) == 1  # `es-ttc search` works meanwhile
    await attach_all(engine, rolled, spec, encoder)
    for method in ("dense", "nnn", "rocchio"):
        reply = find(gateway, rolled, method, k=40)
        assert (len(reply.ids), reply.ids[0]) == (20, "new")
    opensearch = (await engine.capabilities()).product == "opensearch"
    opened = "_search/point_in_time" if opensearch else "_pit"
    pit = await engine.request("POST", f"/{rolled}/{opened}", params={"keep_alive": "1m"})
    inside = {"id": pit.get("pit_id") or pit["id"], "keep_alive": "1m"}
    reply = call(gateway, "POST", "/_search", {"knn": clause("nnn", k=3), "pit": inside, "size": 3})
    assert reply.ids == find(gateway, rolled, "nnn", k=3).ids
    lines = [{}, {"knn": clause("nnn")}, {}, {"knn": clause(None, k=2)}, {}, {"knn": clause("dense", k=0)}]
    several = call(gateway, "POST", f"/{rolled}/_msearch", lines).json()
    first, second, third = several["responses"]
    assert [hit["_id"] for hit in first["hits"]["hits"]] == find(gateway, rolled, "nnn").ids
    assert second["hits"]["hits"][0]["_id"] == "new"
    assert "[knn.k]" in third["error"]["reason"]


async def test_a_rescorer_after_it_and_a_query_beside_it(attached: str, gateway: str) -> None:
    rescore = {"window_size": 10, "ttc": {"method": "spectral", "on_error": "fail"}}
    body = {"knn": clause(k=10), "size": 10, "rescore": rescore}
    reply = search(gateway, attached, body)
    assert (reply.json()["ttc"]["method"], reply.json()["ttc"]["scored"]) == ("spectral", 10)
    everything = scores(ask(gateway, attached))
    assert scores(reply) == pytest.approx({one: everything[one] for one in reply.ids}, abs=1e-5)
    found = scores(find(gateway, attached))
    first = next(iter(found))
    beside = {"knn": clause(), "query": {"terms": {"price": [int(first[1:]), 19]}}, "size": 40}
    both = scores(search(gateway, attached, beside))
    assert both == pytest.approx({**found, first: found[first] + 1, "d19": both["d19"]}, abs=1e-5)


async def test_a_side_index_that_fails_is_an_error_never_an_empty_page(
    attached: str, through_relay: str, relayed: Relay
) -> None:
    def failing(request: Passed) -> Reply | None:
        return UNAVAILABLE if BESIDE in request.body and b'"ttc.vector"' in request.body else None

    relayed.before = failing
    reply = find(through_relay, attached, "nnn")
    assert (reply.status, "busy" in reply.reason) == (502, True)
    beside = search(through_relay, attached, {"knn": clause("nnn"), "query": {"term": {"price": 3}}})
    assert (beside.ids, beside.json()["ttc"]["applied"]) == (["d3"], False)
    assert beside.headers["x-ttc-applied"] == "false"
    strict = {"knn": clause("nnn", ttc={"on_error": "fail"}), "query": {"term": {"price": 3}}}
    assert search(through_relay, attached, strict).status == 502


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"k": 0}, "[knn.k] must be an integer"),
        ({"fliter": {}}, "did you mean [filter]?"),
        ({"field": "ttc.spans.v"}, "has its vectors in a side index: name [ttc.vector]"),
    ],
)
async def test_a_text_for_a_side_index_is_checked_as_a_section_is(
    attached: str, gateway: str, told: dict[str, Any], problem: str
) -> None:
    refused = find(gateway, attached, None, **told)
    assert refused.status == 400
    assert problem in refused.reason


async def test_the_command_line_searches_it_too(engine: Engine, attached: str, gateway: str, encoder: Encoder) -> None:
    client = await connect(EngineSettings(engine=gateway))
    target = await SearchTarget.of(client, attached, FIELDS)
    try:
        bm25, hybrid = await compare_methods(target, CliQuery(CATS, "hybrid", 5))
        dense = await cli_search(target, CliQuery(CATS, "dense", 100))
        rescored = await cli_search(target, CliQuery(CATS, "spectral", 5, first_pass="dense"))
    finally:
        await client.close()
    expected = (await asyncio.to_thread(find, gateway, attached, "dense", k=40)).ids
    assert [hit.id for hit in dense.hits][:5] == expected[:5]
    assert {hit.id for hit in hybrid.hits} == {hit.id for part in (bm25, dense) for hit in part.hits}
    assert {hit.id for hit in rescored.hits} <= set(expected)


async def test_a_calibration_stands_in_the_side_index(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    await native(engine, f"{shop}-native", spec, encoder)
    queries = ["snow", "who hunts at night?", "milk", "a trout"]
    for index in (shop, f"{shop}-native"):
        await _calibrate(engine, index, queries, encoder)
    before = (await Indices.behind(engine, shop)).only().index
    await attach(engine, shop, spec, encoder)
    assert (await Indices.behind(engine, shop)).only().index == before
    wider = replace(spec, scales=(1, 5))
    await attach(engine, shop, wider, encoder)  # another side index takes it over
    assert (await Indices.behind(engine, shop)).only().index != before
    own, reference = (scores(ask(gateway, index, "bidirzscore")) for index in (shop, f"{shop}-native"))
    assert own == pytest.approx(reference, abs=1e-4)
    assert max(own.values()) > 0


async def test_knn_over_side_index_without_spans_is_refused_with_the_field(
    engine: Engine, shop: str, gateway: str, spec: IndexSpec, encoder: Encoder
) -> None:
    await attach(engine, shop, spec, encoder)
    refused = find(gateway, shop, "spectral")
    assert refused.status == 400
    assert "[ttc.spans.v]" in refused.reason
    assert "es-ttc attach" in refused.reason


def delay(target: str) -> Callable[[Passed], None]:
    """Make a relay hold requests to a target back."""
    return lambda passed: time.sleep(0.1) if passed.target.startswith(target) else None


async def test_equal_cosines_keep_their_order_whichever_index_answers_first(
    engine: Engine, attached: str, relayed: Relay, through_relay: str, spanned: IndexSpec, encoder: Encoder
) -> None:
    other = f"{attached}-b"
    await put(engine, other, {f"d{number}": {"body": "Our cat sleeps on the sofa."} for number in range(20)})
    await put(engine, attached, {f"d{number}": {"body": "Our cat sleeps on the sofa."} for number in range(20)})
    await attach(engine, other, spanned, encoder)
    await fill_attached(engine, attached, encoder)
    knn = {"knn": clause(k=25), "size": 40}
    joining = {"query": {"match": {"body": "zebra"}}, "size": 40, "rescore": {"ttc": {"query_text": CATS}}}
    for body in (knn, {**knn, "knn": clause("spectral", k=25)}, joining):
        found = []
        for late in (attached, other):
            relayed.before = delay(f"/{late},ttc-side-{late}/_settings")
            reply = search(through_relay, f"{attached}*", body)
            assert reply.status == 200, reply.body
            hits = reply.json()["hits"]["hits"]
            found.append([(hit["_index"], hit["_id"]) for hit in hits])
        assert len(found[0]) >= 25
        assert found[0] == found[1]

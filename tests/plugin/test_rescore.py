"""The rescorer inside the engine: the order and the scores of the gateway, what it refuses, what it says of itself."""

from io import BytesIO
from typing import Any
from zipfile import ZipFile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plugin.conftest import CODED, DOC_VALUES, NESTED, SHARDED, Plugged
from tests.serving.client import Reply, call, search
from tests.serving.corpus import CATS, EVERYTHING, ttc_rescore
from tests.serving.test_identity import queries
from tests.support.plugin import built

TEXTS = [CATS, "birds singing in the rain", "قطة", "who is awake at night"]
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("spectral", {}),
    ("spectral", {"scales": [1, 3, "mean"], "aggregation": "top_mean"}),
    ("maxsim", {}),
    ("maxsim", {"query": "tokens"}),
    ("dense", {}),
    ("mmr", {}),
    ("nnn", {}),
]


def applied(reply: Reply) -> str:
    return reply.headers.get("x-ttc-applied", "")


def same(plugin: Reply, gateway: Reply) -> None:
    """The same page: documents in order, scores to 1e-4."""
    assert plugin.status == gateway.status == 200, plugin.body
    assert applied(plugin) == applied(gateway) == "true"
    assert plugin.scores == pytest.approx(gateway.scores, abs=1e-4)
    assert plugin.ids == gateway.ids
    assert plugin.json()["hits"]["total"] == gateway.json()["hits"]["total"]
    best = gateway.json()["hits"]["max_score"]
    assert plugin.json()["hits"]["max_score"] == (best if best is None else pytest.approx(best, abs=1e-4))


@pytest.mark.engine
@pytest.mark.parametrize("product", ["opensearch", "elasticsearch"])
def test_a_zip_brings_no_class_that_a_node_may_have_in_another_version(product: str) -> None:
    with ZipFile(built(product)) as plugin:
        jars = [ZipFile(BytesIO(plugin.read(name))) for name in plugin.namelist() if name.endswith(".jar")]
    classes = [name for jar in jars for name in jar.namelist() if name.endswith(".class")]
    assert {name.partition("/")[0] for name in classes} == {"esttc"}


@pytest.mark.parametrize("index", [CODED, DOC_VALUES, NESTED])
@pytest.mark.parametrize(("method", "params"), METHODS, ids=str)
def test_one_shard_is_as_through_the_gateway(plugged: Plugged, index: str, method: str, params: dict[str, Any]) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(method, params=params)}
    before = plugged.stats()
    inside = search(plugged.url, index, body)
    same(inside, search(plugged.gateway, index, body))
    same(search(plugged.url, index, body), inside)
    after = plugged.stats()
    assert after["applied"] == before["applied"] + 2
    assert after["first_pass"] == before["first_pass"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    index=st.sampled_from([CODED, DOC_VALUES, NESTED]),
    query=queries,
    method=st.sampled_from(METHODS),
    text=st.sampled_from(TEXTS),
    start=st.integers(0, 12),
    size=st.integers(1, 20),
    window=st.integers(32, 100),
    combined=st.fixed_dictionaries(
        {},
        optional={
            "score_mode": st.sampled_from(["replace", "total", "multiply", "avg", "max", "min"]),
            "query_weight": st.sampled_from([0, 0.3, 2]),
            "rescore_query_weight": st.sampled_from([0, 0.5, 7.5]),
        },
    ),
    native=st.booleans(),
    post_filter=st.booleans(),
)
def test_generated_requests_are_as_through_the_gateway(
    plugged: Plugged,
    index: str,
    query: dict[str, Any],
    method: tuple[str, dict[str, Any]],
    text: str,
    start: int,
    size: int,
    window: int,
    combined: dict[str, Any],
    native: bool,
    post_filter: bool,
) -> None:
    section = {"method": method[0], "params": method[1], "query_text": text, **combined}
    own: Any = {"window_size": window, "ttc": section}
    if native:
        own = [{"window_size": 20, "query": {"rescore_query": {"match": {"text": "milk"}}}}, own]
    body: dict[str, Any] = {"query": query, "from": start, "size": size, "rescore": own}
    if post_filter:
        body["post_filter"] = {"range": {"number": {"lt": 40}}}
    plugin, gateway = search(plugged.url, index, body), search(plugged.gateway, index, body)
    if not gateway.json()["ttc"]["window"]:
        assert plugin.ids == []
        return
    same(plugin, gateway)


def test_a_window_smaller_than_the_page_is_its_head(plugged: Plugged) -> None:
    body = {"query": EVERYTHING, "size": 30}
    first = search(plugged.url, CODED, body).ids
    reply = search(plugged.url, CODED, body | {"rescore": ttc_rescore() | {"window_size": 10}})
    assert sorted(reply.ids[:10]) == sorted(first[:10])
    assert reply.scores == sorted(reply.scores, reverse=True)


def test_five_shards_are_rescored_each_for_itself(plugged: Plugged) -> None:
    reply = search(plugged.url, SHARDED, {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("maxsim")})
    gateway = search(plugged.gateway, SHARDED, {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore("maxsim")})
    # maxsim judges every document by itself, so only the one without features may stand elsewhere.
    scores = dict(zip(reply.ids, reply.scores, strict=True))
    expected = dict(zip(gateway.ids, gateway.scores, strict=True))
    del scores["d7"], expected["d7"]
    assert scores == pytest.approx(expected, abs=1e-4)


def test_the_second_search_sends_no_features(plugged: Plugged) -> None:
    body = {"query": {"range": {"number": {"lt": 5}}}, "rescore": ttc_rescore("dense", query_text="a text of its own")}
    search(plugged.url, CODED, body)
    before = plugged.stats()
    search(plugged.url, CODED, body)
    after = plugged.stats()
    assert after["round_trips"] == before["round_trips"] + 1
    assert after["bytes_sent"] - before["bytes_sent"] < 2000


def test_explain_explains_the_score_that_is_shown(plugged: Plugged) -> None:
    body = {"query": EVERYTHING, "size": 60, "explain": True, "rescore": ttc_rescore(score_mode="total")}
    hits = search(plugged.url, CODED, body).json()["hits"]["hits"]
    expected = search(plugged.gateway, CODED, body).json()["hits"]["hits"]
    for hit, other in zip(hits, expected, strict=True):
        explanation = hit["_explanation"]
        assert explanation["value"] == pytest.approx(hit["_score"])
        assert explanation["description"] == other["_explanation"]["description"]
        assert [one["value"] for one in explanation["details"]] == pytest.approx(
            [one["value"] for one in other["_explanation"]["details"]], abs=1e-4
        )


@pytest.mark.parametrize(
    ("rescore", "words"),
    [
        ({"ttc": {"metod": "dense"}}, "[ttc] unknown field [metod], did you mean [method]?"),
        ({"ttc": {"method": "dense"}}, "[ttc.query_text] is missing"),
        (ttc_rescore("spectrl"), "unknown method [spectrl]: did you mean [spectral]?"),
        (ttc_rescore(params={"scale": 1}), "did you mean [scales]?"),
        (ttc_rescore(timeout="5"), "[ttc.timeout] is wrong"),
        (ttc_rescore(on_error="ignore"), "[ttc.on_error] is wrong"),
        (ttc_rescore() | {"window_size": 10_001}, "Rescore window [10001] is too large"),
        ({"window": 5, "ttc": {}}, "[window]"),
    ],
    ids=str,
)
def test_plugin_refuses_invalid_sections(plugged: Plugged, rescore: dict[str, Any], words: str) -> None:
    reply = search(plugged.url, CODED, {"query": EVERYTHING, "rescore": rescore})
    assert reply.status == 400
    assert words in reply.reason


def test_a_rescore_beside_a_sort_is_refused_as_a_native_one(plugged: Plugged) -> None:
    reply = search(plugged.url, CODED, {"sort": ["number"], "rescore": ttc_rescore()})
    assert (reply.status, reply.reason) == (400, "Cannot use [sort] option in conjunction with [rescore].")


def test_a_rescored_answer_is_not_cached(plugged: Plugged) -> None:
    body = {"query": EVERYTHING, "rescore": ttc_rescore(), "size": 3}
    before = plugged.stats()["windows"]
    for _ in range(3):
        search(plugged.url, CODED, body, "?request_cache=true")
    assert plugged.stats()["windows"] == before + 3


def test_a_point_in_time(plugged: Plugged) -> None:
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}
    expected = search(plugged.url, CODED, body)
    opensearch = plugged.product == "opensearch"
    opened = call(
        plugged.url, "POST", f"/{CODED}/{'_search/point_in_time' if opensearch else '_pit'}?keep_alive=1m"
    ).json()
    pit = opened["pit_id" if opensearch else "id"]
    try:
        within = call(plugged.url, "POST", "/_search", body | {"pit": {"id": pit}})
        assert (within.ids, within.scores) == (expected.ids, expected.scores)
    finally:
        if opensearch:
            call(plugged.url, "DELETE", "/_search/point_in_time", {"pit_id": [pit]})
        else:
            call(plugged.url, "DELETE", "/_pit", {"id": pit})

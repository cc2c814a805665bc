"""Rescoring on the coordinator: many shards are rescored together, as by the gateway.

On OpenSearch a search pipeline does it, on Elasticsearch a filter before the search action, where the request asks.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plugin.conftest import CODED, DOC_VALUES, NESTED, SHARDED, Plugged
from tests.plugin.test_faults import recovered
from tests.plugin.test_rescore import METHODS, TEXTS, applied
from tests.serving.client import Reply, call, search
from tests.serving.corpus import CATS, EVERYTHING
from tests.serving.test_identity import queries
from tests.support.plugin import Fault

PIPELINE = "ttc"
BLOCK = 40


def put(plugged: Plugged, name: str, response: list[Any], request: list[Any]) -> Reply:
    body = {"response_processors": response, "request_processors": request}
    return call(plugged.url, "PUT", f"/_search/pipeline/{name}", body)


@pytest.fixture(autouse=True)
def pipelines(request: pytest.FixtureRequest) -> None:
    if "elasticsearch" in request.node.name:
        return
    plugged: Plugged = request.getfixturevalue("opensearch_plugged")
    if call(plugged.url, "GET", "/_search/pipeline/alone").status == 200:
        return
    rescore = {"ttc_rescore": {"method": "spectral"}}
    assert put(plugged, PIPELINE, [rescore], [{"ttc_window": {"window_size": BLOCK}}]).status == 200
    assert put(plugged, "alone", [rescore], []).status == 200


def through(plugged: Plugged, index: str, body: dict[str, Any], pipeline: str = PIPELINE, **section: Any) -> Reply:
    if plugged.product == "elasticsearch":
        ext = {"ext": {"ttc": {"method": "spectral", "window_size": BLOCK} | section}}
        return search(plugged.url, index, body | ext)
    ext = {"ext": {"ttc": section}} if section else {}
    return search(plugged.url, index, body | ext, f"?search_pipeline={pipeline}")


def gateway(plugged: Plugged, index: str, body: dict[str, Any], **section: Any) -> Reply:
    rescore = {"window_size": BLOCK, "ttc": {"method": "spectral"} | section}
    return search(plugged.gateway, index, body | {"rescore": rescore})


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    index=st.sampled_from([SHARDED, SHARDED, f"{CODED},{SHARDED}", DOC_VALUES, NESTED, f"{CODED},{NESTED}"]),
    query=queries,
    method=st.sampled_from(METHODS),
    text=st.sampled_from(TEXTS),
    start=st.integers(0, 50),
    size=st.integers(1, 20),
    mode=st.sampled_from(["replace", "total", "max"]),
)
def test_any_number_of_shards_is_as_through_the_gateway(
    plugged: Plugged,
    index: str,
    query: dict[str, Any],
    method: tuple[str, dict[str, Any]],
    text: str,
    start: int,
    size: int,
    mode: str,
) -> None:
    aggregations = {"n": {"max": {"field": "number"}}, "best": {"top_hits": {"size": 2, "_source": ["title"]}}}
    body: dict[str, Any] = {"query": query, "from": start, "size": size, "aggs": aggregations}
    section: dict[str, Any] = {"method": method[0], "params": method[1], "query_text": text, "score_mode": mode}
    expected = gateway(plugged, index, body, **section)
    got = through(plugged, index, body, **section)
    assert got.status == expected.status == 200, got.body
    assert got.scores == pytest.approx(expected.scores, abs=1e-4)
    assert got.ids == expected.ids
    one, other = got.json(), expected.json()
    assert one["hits"]["total"] == other["hits"]["total"]
    assert one["aggregations"] == other["aggregations"]
    assert one["_shards"] == other["_shards"]
    plain = [{key: value for key, value in hit.items() if key != "_score"} for hit in one["hits"]["hits"]]
    assert plain == [{key: value for key, value in hit.items() if key != "_score"} for hit in other["hits"]["hits"]]
    if other["ttc"]["window"]:
        assert one["ext"]["ttc"] == {"method": method[0], "applied": True, "window": other["ttc"]["window"]}


def test_a_client_need_not_know_of_it(opensearch_plugged: Plugged) -> None:
    """The index's own pipeline, and the text of the query."""
    plugged = opensearch_plugged
    call(plugged.url, "PUT", f"/{SHARDED}/_settings", {"index.search.default_pipeline": PIPELINE})
    try:
        body = {"query": {"bool": {"must": {"match": {"text": CATS}}, "filter": {"match": {"title": "cat"}}}}}
        expected = gateway(plugged, SHARDED, body, query_text=CATS)
        reply = search(plugged.url, SHARDED, body)
        assert reply.json()["ext"]["ttc"]["applied"] is True
        assert reply.ids == expected.ids
        assert "fields" not in reply.json()["hits"]["hits"][0]
    finally:
        call(plugged.url, "PUT", f"/{SHARDED}/_settings", {"index.search.default_pipeline": None})


def test_with_oversample_and_truncate_hits(opensearch_plugged: Plugged) -> None:
    plugged = opensearch_plugged
    name = "oversampled"
    rescore = {"ttc_rescore": {"method": "maxsim", "query_text": CATS}}
    request = [{"oversample": {"sample_factor": 6}}]
    assert put(plugged, name, [rescore, {"truncate_hits": {}}], request).status == 200
    reply = through(plugged, SHARDED, {"query": EVERYTHING, "size": 10}, name)
    expected = search(
        plugged.gateway,
        SHARDED,
        {"query": EVERYTHING, "size": 10, "rescore": {"window_size": 60, "ttc": rescore["ttc_rescore"]}},
    )
    assert expected.json()["ttc"]["method"] == "maxsim"
    assert reply.ids == expected.ids
    assert reply.scores == pytest.approx(expected.scores, abs=1e-4)
    call(plugged.url, "DELETE", f"/_search/pipeline/{name}")


def test_hashes_are_looked_up_where_the_window_did_not_ask_for_them(opensearch_plugged: Plugged) -> None:
    plugged = opensearch_plugged
    body = {"query": EVERYTHING, "size": 40, "_source": False}
    reply = through(plugged, SHARDED, body, "alone", query_text=CATS)
    assert reply.json()["ext"]["ttc"] == {"method": "spectral", "applied": True, "window": 40}
    assert reply.ids == gateway(plugged, SHARDED, body, query_text=CATS).ids


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        ({"ttc_rescore": {"metod": "dense"}}, "did you mean [method]?"),
        ({"ttc_rescore": {"method": ""}}, "[ttc.method] is wrong"),
        ({"ttc_rescore": {"method": "dense", "timeout": "soon"}}, "[ttc.timeout] is wrong"),
    ],
)
def test_a_pipeline_is_checked_when_it_is_made(
    opensearch_plugged: Plugged, processor: dict[str, Any], words: str
) -> None:
    plugged = opensearch_plugged
    reply = put(plugged, "wrong", [processor], [])
    assert reply.status == 400
    assert words in reply.reason
    assert put(plugged, "wrong", [], [{"ttc_window": {"window_size": 0}}]).status == 400


def test_plugin_request_with_invalid_options_is_refused(plugged: Plugged) -> None:
    mistakes: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"query": EVERYTHING}, {"method": "spectrl", "query_text": "x"}, "[spectral]"),
        ({"query": {"term": {"number": 1}}}, {}, "[ttc.query_text]"),
        ({"query": EVERYTHING}, {"query_txt": "x"}, "[query_text]"),
        ({"query": EVERYTHING, "sort": ["number"]}, {"query_text": "x"}, "[sort]"),
        ({"query": EVERYTHING, "from": 9_990, "size": 20}, {"query_text": "x"}, "less deep"),
    ]
    for body, section, words in mistakes:
        reply = through(plugged, SHARDED, body, **section)
        assert (reply.status, words in reply.reason) == (400, True), reply.body


def test_elasticsearch_plugin_refuses_scroll_and_invalid_windows(elasticsearch_plugged: Plugged) -> None:
    plugged, body = elasticsearch_plugged, {"query": EVERYTHING, "ext": {"ttc": {"method": "dense", "query_text": "x"}}}
    scroll = search(plugged.url, SHARDED, body, "?scroll=1m")
    assert (scroll.status, "[scroll]" in scroll.reason) == (400, True), scroll.body
    for window in (0, 10_001, "100", None):
        reply = through(plugged, SHARDED, {"query": EVERYTHING}, query_text="x", window_size=window)
        assert (reply.status, "[ext.ttc.window_size]" in reply.reason) == (400, True)


def test_each_of_several_searches_of_elasticsearch_has_its_own(elasticsearch_plugged: Plugged) -> None:
    """Explanations, highlights and inner parts of an answer are the engine's; one search of several may ask for it."""
    plugged = elasticsearch_plugged
    plain = {"query": {"match": {"text": CATS}}, "highlight": {"fields": {"text": {}}}, "docvalue_fields": ["ttc.hash"]}
    ours = plain | {"ext": {"ttc": {"method": "spectral", "query_text": CATS, "window_size": BLOCK}}}
    lines = [{"index": SHARDED}, plain, {"index": SHARDED}, ours]
    answers = call(plugged.url, "POST", "/_msearch", lines).json()["responses"]
    assert "ext" not in answers[0]
    assert answers[1]["ext"]["ttc"]["applied"] is True
    assert list(answers[1]["hits"]["hits"][0]["fields"]) == ["ttc.hash"]  # ours besides it are hidden
    assert answers[1]["hits"]["hits"][0]["highlight"]
    expected = gateway(plugged, SHARDED, plain, query_text=CATS)
    assert [hit["_id"] for hit in answers[1]["hits"]["hits"]] == expected.ids


def test_blend_is_the_default_and_ranks_the_window_alone(plugged: Plugged) -> None:
    body = {"query": {"match": {"text": "the farmer watches before rain"}}, "size": 10}
    if plugged.product == "opensearch":
        assert put(plugged, "default", [{"ttc_rescore": {}}], [{"ttc_window": {"window_size": BLOCK}}]).status == 200
        reply = through(plugged, CODED, body, "default", query_text=CATS)
    else:
        reply = search(plugged.url, CODED, body | {"ext": {"ttc": {"query_text": CATS, "window_size": BLOCK}}})
    told = reply.json()["ext"]["ttc"]
    assert (told["method"], told["applied"], told["window_only"]) == ("blend", True, True)
    section = {"query_text": CATS, "candidates": {"knn": 0}}
    expected = search(plugged.gateway, CODED, body | {"rescore": {"window_size": BLOCK, "ttc": section}})
    assert reply.ids == expected.ids
    assert reply.scores == pytest.approx(expected.scores, abs=1e-4)
    rescorer = {"window_size": BLOCK, "ttc": {"query_text": CATS}}
    inside = search(plugged.url, CODED, body | {"rescore": rescorer})
    assert inside.ids == expected.ids
    joined = search(plugged.url, CODED, body | {"rescore": {**rescorer, "ttc": section}})
    assert (joined.status, "[ttc.candidates]" in joined.reason) == (400, True)


def test_a_fault_leaves_the_first_pass_and_says_so(plugged: Plugged) -> None:
    body = {"query": EVERYTHING, "from": 5, "size": 10}
    expected = search(plugged.url, SHARDED, body)
    recovered(plugged)
    fault: Fault = lambda _: Reply(200, {}, b"\xff")  # noqa: E731 - a fault is a function
    with plugged.sidecar.failing(fault):
        reply = through(plugged, SHARDED, body, query_text=CATS)
        failed = through(plugged, SHARDED, body, query_text=CATS, on_error="fail")
    assert reply.ids == expected.ids
    if plugged.product == "elasticsearch":
        assert applied(reply) == "false; reason=protocol"
    assert reply.json()["ext"]["ttc"] == {"method": "spectral", "applied": False, "window": BLOCK, "reason": "protocol"}
    assert failed.status == 503
    recovered(plugged)


def test_plugin_search_without_hits_is_answered(plugged: Plugged) -> None:
    reply = through(plugged, SHARDED, {"query": {"match": {"text": "no-such-word-anywhere"}}}, query_text=CATS)
    assert (reply.status, reply.ids) == (200, [])
    counted = through(plugged, SHARDED, {"query": EVERYTHING, "size": 0}, query_text=CATS)
    assert (counted.status, counted.ids) == (200, [])

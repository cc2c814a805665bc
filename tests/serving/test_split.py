"""A wide window asked for bare, then the page's own hits: the same answer as in one step, whatever happens between."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import document_hash, document_json
from es_ttc.index.ingest.encode import action_lines, encode_documents
from es_ttc.serving.features.keys import content_numbers, marks_of, with_contents
from es_ttc.serving.request.request import parse_params
from es_ttc.serving.rescore.plan import plan_search
from es_ttc.serving.rescore.two_requests import bare_window, can_split, filled, page_hits
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call, search
from tests.serving.conftest import Behind, make_index
from tests.serving.relay import Passed, relay

EVERYTHING = {"match": {"anyway": "creature"}}
OURS = {"ttc": {"method": "spectral", "query_text": "which cat drinks milk?"}}


def planned(url: str = "", **body: Any) -> Any:
    return plan_search({"query": EVERYTHING, "rescore": OURS} | body, parse_params(url), max_window=1000)


@pytest.mark.parametrize(
    ("changes", "url", "expected"),
    [
        ({}, "", True),
        ({"size": 33, "highlight": {}, "aggs": {}, "_source": False}, "routing=a&timeout=1s", True),
        ({"size": 34}, "", False),
        ({"size": 0}, "", False),
        ({"explain": True}, "", False),
        ({"collapse": {"field": "f"}}, "", True),
        ({"fields": ["f"], "aggs": {"a": {"terms": {}}}}, "", True),
        ({"fields": ["f"], "aggs": {"a": {"terms": {}, "aggs": {"b": {"top_hits": {}}}}}}, "", False),
        ({"stored_fields": ["f"]}, "", False),
        ({"terminate_after": 3}, "", False),
        ({"knn": {}}, "", False),
        ({"query": {"hybrid": {"queries": []}}, "rescore": {"ttc": OURS["ttc"]}}, "", False),
        ({"rescore": [{"query": {}}, OURS]}, "", False),
        ({}, "search_pipeline=p", False),
        ({}, "q=cat", False),
    ],
)
def test_only_what_is_known_to_be_the_same_is_split(changes: dict[str, Any], url: str, expected: bool) -> None:
    assert can_split(planned(url, **changes)) is expected


def test_each_request_has_its_parts() -> None:
    plan = planned(size=2, highlight={"h": 1}, aggs={"a": 1}, min_score=1, _source=["t"], collapse={"field": "f"})
    body = plan.body
    window = bare_window(plan)
    assert window["docvalue_fields"] == ["ttc.hash", "ttc.encoder", "ttc.version", "f"]
    assert window["stored_fields"] == "_none_"
    assert window.keys() & {"highlight", "_source"} == set()
    assert window.keys() >= {"aggs", "min_score", "rescore"}
    hits = page_hits(body, [("i", "b", 0), ("i", "a", 1)], 3)
    assert hits["size"] == 3
    assert hits["query"]["bool"] == {"must": [EVERYTHING], "filter": [{"terms": {"ttc.hash": ["a", "b"]}}]}
    assert hits.keys() >= {"highlight", "_source", "min_score"}
    assert hits.keys() & {"aggs", "rescore"} == set()


def test_hits_of_equal_content_are_told_apart_by_their_order() -> None:
    def hit(content: str | None, **more: Any) -> dict[str, Any]:
        return {"_index": "i", **({"fields": {"ttc.hash": [content]}} if content else {}), **more}

    window = [hit("a"), hit("b"), hit(None), hit("a")]
    assert marks_of(window) == [("i", "a", 0), ("i", "b", 0), None, ("i", "a", 1)]
    assert with_contents(window, content_numbers(window), [window[3], window[2]]) == [window[0], window[3]]
    full = [hit("a", _id="1", _score=9), hit("a", _id="2", _score=8)]
    filled_in = filled([{"_score": 0.5, "_ttc": {}}, {"_score": 0.4}], [("i", "a", 1), ("i", "a", 0)], full)
    assert filled_in is not None
    assert [(hit["_id"], hit["_score"]) for hit in filled_in] == [("2", 0.5), ("1", 0.4)]
    assert filled([{"_score": 1}], [("i", "gone", 0)], full) is None


def test_documents_of_equal_content_are_all_found(
    behind: Behind, engine_url: str, index_name: str, encoder: Encoder
) -> None:
    make_index(engine_url, index_name, encoder)
    twin = {"title": "The cat", "text": "A cat drinks milk.", "anyway": "creature"}
    lines: list[bytes] = []
    for number in range(30):
        source = document_json(twin | {"number": number})
        [features] = encode_documents([twin], behind.spec, encoder)
        lines += action_lines(f"twin{number}", source, document_hash(source), features, behind.spec)
    bulk = b"\n".join(lines) + b"\n"
    headers = {"content-type": "application/x-ndjson"}
    assert not call(engine_url, "POST", f"/{index_name}/_bulk?refresh=true", bulk, headers).json()["errors"]
    seen: list[str] = []
    for start in range(0, 90, 10):
        reply = search(behind.gateway, index_name, {"query": EVERYTHING, "from": start, "rescore": OURS})
        for hit in reply.json()["hits"]["hits"]:
            assert hit["_id"] == f"twin{hit['_source']['number']}" or not hit["_id"].startswith("twin")
        seen += reply.ids
    assert len(seen) == len(set(seen)) == 90


@pytest.mark.parametrize("change", ["update", "delete"])
def test_a_document_that_changes_before_its_page_is_read(
    behind: Behind, index_name: str, encoder: Encoder, change: str
) -> None:
    make_index(behind.engine, index_name, encoder)
    best = search(behind.gateway, index_name, {"query": EVERYTHING, "rescore": OURS}).ids[0]

    def before(request: Passed) -> Reply | None:
        if b'"must":' in request.body and b'"terms":{"ttc.hash"' in request.body:
            if change == "delete":
                call(behind.engine, "DELETE", f"/{index_name}/_doc/{best}?refresh=true")
            else:
                call(behind.engine, "POST", f"/{index_name}/_update/{best}?refresh=true", {"doc": {"text": "changed"}})
        return None

    with relay(behind.engine) as between:
        between.before = before
        settings = GatewaySettings(engine=between.url, port=0, default_timeout_ms=20_000)
        with running_gateway(settings, load=lambda _name, _folder: encoder) as gateway:
            reply = search(gateway, index_name, {"query": EVERYTHING, "rescore": OURS})
    assert reply.json()["ttc"]["applied"] is True
    assert len(reply.ids) == 10
    assert best not in reply.ids
    assert reply.scores == sorted(reply.scores, reverse=True)


def test_what_the_engine_refuses_of_the_page_is_its_own_answer(behind: Behind) -> None:
    body = {"query": EVERYTHING, "highlight": {"fields": {"text": {"type": "no such highlighter"}}}}
    direct = search(behind.engine, behind.index, body | {"size": 100})
    reply = search(behind.gateway, behind.index, body | {"rescore": OURS})
    assert reply.status == direct.status == 400
    assert reply.json()["error"]["type"] == direct.json()["error"]["type"]

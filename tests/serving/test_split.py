"""A wide window asked for bare, then the page's own hits: the same answer as in one step, whatever happens between."""

from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import document_hash, document_json
from es_ttc.index.ingest.encode import action_lines, encode_documents
from es_ttc.serving.plan.bodies import bare_body
from es_ttc.serving.plan.plan import plan_search
from es_ttc.serving.request.request import url_params
from es_ttc.serving.rescore.two_requests import aggregated, can_split, filled, full_hits
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index
from tests.serving.corpus import EVERYTHING
from tests.serving.relay import Passed, relay
from tests.support.gateway import gateway_to

TERM = {"term": {"tenant": "acme"}}
RESCORE = {"ttc": {"method": "spectral", "query_text": "which cat drinks milk?"}}


def planned(url: str = "", **body: Any) -> Any:
    return plan_search({"query": EVERYTHING, "rescore": RESCORE} | body, url_params(url), max_window=1000)


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
        ({"terminate_after": 3, "min_score": 1}, "", True),
        ({"search_after": [3]}, "", False),
        ({"knn": {}}, "", False),
        ({"query": {"hybrid": {"queries": []}}, "rescore": {"ttc": RESCORE["ttc"]}}, "", False),
        ({"rescore": [{"query": {}}, RESCORE]}, "", False),
        ({}, "search_pipeline=p", False),
        ({}, "q=cat&terminate_after=3", True),
    ],
)
def test_only_what_is_known_to_be_the_same_is_split(changes: dict[str, Any], url: str, expected: bool) -> None:
    assert can_split(planned(url, **changes)) is expected


def test_each_request_has_its_parts() -> None:
    plan = planned(size=2, highlight={"h": 1}, aggs={"a": 1}, min_score=1, _source=["t"], collapse={"field": "f"})
    body = plan.body
    named = bare_body(body, ["f"], with_ids=True)
    assert named.keys() & {"highlight", "stored_fields"} == set()
    assert named["_source"] is False
    window = bare_body(body, ["f"], with_ids=False)
    assert window["docvalue_fields"] == ["ttc.hash", "ttc.encoder", "_seq_no", "f"]
    assert window["stored_fields"] == "_none_"
    assert window.keys() & {"highlight", "_source"} == set()
    assert window.keys() >= {"aggs", "min_score", "rescore"}
    bare = [hit("b", 4), hit("a", 2), hit(None, 1, _id="x")]
    hits = full_hits(body, bare, [TERM], 3)
    by_content = {"bool": {"filter": [{"terms": {"ttc.hash": ["a", "b"]}}, {"terms": {"_seq_no": [2, 4]}}]}}
    these = {"bool": {"should": [by_content, {"ids": {"values": ["x"]}}]}}
    assert hits["size"] == 3
    assert hits["query"]["bool"] == {
        "should": [EVERYTHING, {"bool": {"filter": [these, TERM]}}], "filter": [these], "minimum_should_match": 1
    }  # fmt: skip
    assert hits.keys() >= {"highlight", "_source"}
    assert hits.keys() & {"aggs", "min_score", "rescore"} == set()
    counted = aggregated(body, bare[:2], [TERM])
    assert counted["query"] == {"bool": {"should": [EVERYTHING, {"bool": {"filter": [by_content, TERM]}}]}}
    assert counted.keys() >= {"aggs", "min_score"}
    assert counted.keys() & {"highlight", "rescore", "_source"} == set()
    assert aggregated(body, [], [TERM])["query"] == EVERYTHING


def hit(content: str | None, number: int, **more: Any) -> dict[str, Any]:
    return {"_index": "i", "fields": {"_seq_no": [number], **({"ttc.hash": [content]} if content else {})}, **more}


def test_hits_of_equal_content_are_told_apart_by_their_sequence_numbers() -> None:
    page = [hit("a", 2, _score=0.5, _ttc={}), hit("a", 1, _score=0.4), hit("gone", 3, _score=0.3)]
    full = [hit("a", 1, _id="1", _score=9), hit("a", 2, _id="2", _score=8)]
    shown = filled(page, page, full)
    assert shown is not None
    assert [(hit["_id"], hit["_score"]) for hit in shown] == [("2", 0.5), ("1", 0.4)]
    twin = hit("a", 2, _id="3")
    assert filled(page, page, [*full, twin]) is None, "another shard has the same number"
    others = [hit("a", 2, _id="2", _score=7)]
    shown = filled([others[0], page[0]], page[:1], [full[1], twin], others)
    assert shown is not None
    assert [hit["_id"] for hit in shown] == ["2", "3"]


def test_documents_of_equal_content_are_all_found(
    stack: SearchStack, engine_url: str, index_name: str, encoder: Encoder
) -> None:
    make_index(engine_url, index_name, encoder)
    twin = {"title": "The cat", "text": "A cat drinks milk.", "kind": "animal"}
    lines: list[bytes] = []
    for number in range(30):
        source = document_json(twin | {"number": number})
        [features] = encode_documents([twin], stack.spec, encoder)
        lines += action_lines(f"twin{number}", source, document_hash(source), features, stack.spec)
    bulk = b"\n".join(lines) + b"\n"
    headers = {"content-type": "application/x-ndjson"}
    assert not call(engine_url, "POST", f"/{index_name}/_bulk?refresh=true", bulk, headers).json()["errors"]
    seen: list[str] = []
    for start in range(0, 90, 10):
        reply = search(stack.gateway, index_name, {"query": EVERYTHING, "from": start, "rescore": RESCORE})
        for hit in reply.json()["hits"]["hits"]:
            assert hit["_id"] == f"twin{hit['_source']['number']}" or not hit["_id"].startswith("twin")
        seen += reply.ids
    assert len(seen) == len(set(seen)) == 90


@pytest.mark.parametrize("change", ["update", "delete"])
def test_a_document_that_changes_before_its_page_is_read(
    stack: SearchStack, index_name: str, encoder: Encoder, change: str
) -> None:
    make_index(stack.engine, index_name, encoder)
    best = search(stack.gateway, index_name, {"query": EVERYTHING, "rescore": RESCORE}).ids[0]

    def before(request: Passed) -> Reply | None:
        if b'"terms":{"ttc.hash"' in request.body:
            if change == "delete":
                call(stack.engine, "DELETE", f"/{index_name}/_doc/{best}?refresh=true")
            else:
                call(stack.engine, "POST", f"/{index_name}/_update/{best}?refresh=true", {"doc": {"text": "changed"}})
        return None

    with relay(stack.engine) as between:
        between.before = before
        with gateway_to(between.url, encoder) as gateway:
            reply = search(gateway, index_name, {"query": EVERYTHING, "rescore": RESCORE})
    assert reply.json()["ttc"]["applied"] is True
    assert len(reply.ids) == 10
    assert best not in reply.ids
    assert reply.scores == sorted(reply.scores, reverse=True)


def test_split_search_page_refused_by_the_engine_is_its_answer(stack: SearchStack) -> None:
    body = {"query": EVERYTHING, "highlight": {"fields": {"text": {"type": "no such highlighter"}}}}
    direct = search(stack.engine, stack.index, body | {"size": 100})
    reply = search(stack.gateway, stack.index, body | {"rescore": RESCORE})
    assert reply.status == direct.status == 400
    assert reply.json()["error"]["type"] == direct.json()["error"]["type"]

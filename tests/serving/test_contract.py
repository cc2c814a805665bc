"""What else belongs to a search: points in time, data streams, routing, missing indices, what is refused and how."""

import asyncio
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.index.ingest.compose import document_hash, document_json
from es_ttc.index.ingest.encode import action_lines, encode_documents
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, fill, make_index
from tests.serving.corpus import CATS, EVERYTHING, corpus, in_memory, ttc_rescore
from tests.support.gateway import gateway_to

NATIVE = {"window_size": 100, "query": {"rescore_query": {"match_all": {}}}}


@contextmanager
def point_in_time(stack: SearchStack, target: str) -> Iterator[dict[str, Any]]:
    if stack.product == "opensearch":
        opened = call(stack.gateway, "POST", f"/{target}/_search/point_in_time?keep_alive=2m").json()
        yield {"id": opened["pit_id"]}
        call(stack.gateway, "DELETE", "/_search/point_in_time", {"pit_id": [opened["pit_id"]]})
    else:
        opened = call(stack.gateway, "POST", f"/{target}/_pit?keep_alive=2m").json()
        yield {"id": opened["id"]}
        call(stack.gateway, "DELETE", "/_pit", {"id": opened["id"]})


def lines_of(documents: list[dict[str, Any]], stack: SearchStack, encoder: Encoder, action: str) -> bytes:
    """A bulk of documents with their features."""
    lines: list[bytes] = []
    for document, features in zip(documents, encode_documents(documents, stack.spec, encoder), strict=True):
        source = document_json({name: value for name, value in document.items() if name != "_id"})
        head, body = action_lines(document["_id"], source, document_hash(source), features, stack.spec)
        lines += [head.replace(b'"index"', action.encode()), body]
    return b"\n".join(lines) + b"\n"


def test_pages_of_a_point_in_time_stay_while_documents_change(
    stack: SearchStack, index_name: str, encoder: Encoder
) -> None:
    make_index(stack.engine, index_name, encoder)
    body = {"query": EVERYTHING, "size": 10, "rescore": ttc_rescore() | {"window_size": 30}}
    with gateway_to(stack.engine, encoder, feature_cache_mb=0) as gateway, point_in_time(stack, index_name) as pit:

        def page(start: int) -> Reply:
            return call(gateway, "POST", "/_search", body | {"pit": pit, "from": start})

        before = [page(start) for start in range(0, 60, 10)]
        assert before[0].json()["pit_id"]
        assert before[0].scores == search(gateway, index_name, body).scores
        assert sorted(one for reply in before for one in reply.ids) == sorted(each["_id"] for each in corpus())
        for one in before[1].ids + before[4].ids[:3]:
            call(stack.engine, "POST", f"/{index_name}/_update/{one}", {"doc": {"text": "changed since"}})
        for one in before[2].ids:
            call(stack.engine, "DELETE", f"/{index_name}/_doc/{one}")
        call(stack.engine, "POST", f"/{index_name}/_refresh")
        after = [page(start) for start in range(0, 60, 10)]
        lines = [line for start in (0, 50) for line in ({}, body | {"pit": pit, "from": start})]
        several = call(gateway, "POST", "/_msearch", lines)
    for first, second in zip(before, after, strict=True):
        assert (first.ids, first.scores) == (second.ids, second.scores)
        assert first.json()["ttc"]["scored"] == second.json()["ttc"]["scored"]
    assert [one["hits"]["hits"] for one in several.json()["responses"]] == [
        reply.json()["hits"]["hits"] for reply in (before[0], before[5])
    ]


@pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)
def test_data_stream_is_rescored(stack: SearchStack, index_name: str, encoder: Encoder) -> None:
    """On OpenSearch: the tests' Elasticsearch comes without the module that removes data streams."""
    template = {
        "mappings": call(stack.engine, "GET", f"/{stack.index}/_mapping").json()[stack.index]["mappings"],
        "settings": {"index.knn": True, "number_of_shards": 2},
    }
    pattern = {"index_patterns": [f"{index_name}*"], "data_stream": {}, "priority": 500, "template": template}
    documents = [document | {"@timestamp": "2026-01-01T00:00:00Z"} for document in corpus()]
    ndjson = {"content-type": "application/x-ndjson"}
    assert call(stack.gateway, "PUT", f"/_index_template/{index_name}", pattern).status == 200
    try:
        for batch in (documents[:30], documents[30:]):
            raw = lines_of(batch, stack, encoder, '"create"')
            assert not call(stack.gateway, "POST", f"/{index_name}/_bulk?refresh=true", raw, ndjson).json()["errors"]
            call(stack.gateway, "POST", f"/{index_name}/_rollover")
        reply = search(stack.gateway, index_name, {"query": EVERYTHING, "size": 59, "rescore": ttc_rescore()})
        assert len({hit["_index"] for hit in reply.json()["hits"]["hits"]}) == 2
        assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(
            in_memory(encoder, stack.spec, "spectral", [CATS]), abs=1e-4
        )
    finally:
        call(stack.engine, "DELETE", f"/_data_stream/{index_name}")
        call(stack.engine, "DELETE", f"/_index_template/{index_name}")


def test_routing_and_missing_indices(stack: SearchStack, index_name: str, encoder: Encoder) -> None:
    asyncio.run(fill(stack.engine, index_name, stack.spec, encoder, []))
    raw = lines_of(corpus(), stack, encoder, '"index"')
    target = f"/{index_name}/_bulk?refresh=true&routing=here"
    call(stack.engine, "POST", target, raw, {"content-type": "application/x-ndjson"})
    body = {"query": EVERYTHING, "size": 59}
    expected = in_memory(encoder, stack.spec, "spectral", [CATS])
    absent = f"{index_name},{index_name}-absent"
    for where, url in (
        (index_name, "?routing=here"),
        (index_name, "?routing=here&preference=_local"),
        (absent, "?ignore_unavailable=true"),
        (f"{index_name}*,{index_name}-no-*", "?allow_no_indices=true"),
    ):
        reply = search(stack.gateway, where, body | {"rescore": ttc_rescore()}, url)
        assert reply.status == 200, reply.body
        assert dict(zip(reply.ids, reply.scores, strict=True)) == pytest.approx(expected, abs=1e-4)
    shards = {shard for shard in range(20) if search(stack.engine, index_name, body, f"?routing=r{shard}").ids == []}
    elsewhere = f"?routing=r{min(shards)}"
    assert search(stack.gateway, index_name, body | {"rescore": ttc_rescore()}, elsewhere).ids == []
    for where in (absent, f"{index_name}-absent"):
        direct = search(stack.engine, where, body | {"rescore": NATIVE})
        reply = search(stack.gateway, where, body | {"rescore": ttc_rescore()})
        assert (reply.status, reply.json()) == (direct.status, direct.json())
        assert reply.status == 404


def test_min_score_holds_for_the_first_pass_as_beside_a_native_rescorer(stack: SearchStack) -> None:
    words = {"query": {"match": {"text": "cat drinks milk"}}, "size": 60}
    every = search(stack.engine, stack.index, words).scores  # engines differ: the least of some is above 1.5
    least = (min(every) + max(every)) / 2
    body = {**words, "min_score": least}
    weights = {"query_weight": 1e-3, "rescore_query_weight": 1e-6}
    tiny = {"window_size": 100, "query": {"rescore_query": {"match_all": {}}, **weights}}
    direct = search(stack.engine, stack.index, body | {"rescore": tiny})
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore(rescore_query_weight=1e-3)})
    assert set(reply.ids) == set(direct.ids)
    assert reply.json()["hits"]["total"] == direct.json()["hits"]["total"]
    assert 0 < len(reply.ids) < len(every)
    assert max(reply.scores) < least


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({"sort": ["number"]}, ""),
        ({"sort": [{"number": "desc"}, "_score"]}, ""),
        ({"sort": ["number"], "search_after": [3]}, ""),
        ({"sort": ["_score", "number"], "search_after": [3, 3]}, ""),
        ({"search_after": [3]}, ""),
        ({"slice": {"id": 0, "max": 2}}, ""),
        ({"slice": {"id": 0, "max": 2}}, "?scroll=1m"),
        ({}, "?scroll=1m"),
        ({}, "?sort=number"),
        ({"from": -1}, ""),
        ({"_source": 3}, ""),
        ({"aggs": {"a": {"no_such": {}}}}, ""),
        ({"query": {"no_such": {}}}, ""),
        ({"fields": [{"field": 1}]}, ""),
        ({}, "?routing=a&no_such=1"),
    ],
)
def test_search_refused_by_the_engine_keeps_its_reason(stack: SearchStack, changes: dict[str, Any], url: str) -> None:
    body = {"query": EVERYTHING} | changes
    direct = search(stack.engine, stack.index, body | {"rescore": NATIVE}, url)
    reply = search(stack.gateway, stack.index, body | {"rescore": ttc_rescore()}, url)
    assert reply.status == direct.status >= 400
    if changes != {"from": -1}:
        assert reply.json()["error"]["root_cause"][0]["reason"] == direct.json()["error"]["root_cause"][0]["reason"]
    else:
        assert "[from]" in reply.reason


def test_a_slice_of_a_point_in_time_does_what_it_does_beside_a_native_rescorer(stack: SearchStack) -> None:
    with point_in_time(stack, stack.index) as pit:
        body = {"query": EVERYTHING, "size": 60, "pit": pit, "slice": {"id": 0, "max": 2}}
        direct = call(stack.engine, "POST", "/_search", body | {"rescore": NATIVE})
        reply = call(stack.gateway, "POST", "/_search", body | {"rescore": ttc_rescore()})
    assert reply.status == direct.status, (reply.body, direct.body)
    if direct.status == 200:
        assert set(reply.ids) == set(direct.ids)
        assert reply.json()["ttc"]["applied"] is True


def test_searches_of_other_kinds_refuse_our_section_clearly(stack: SearchStack) -> None:
    body = {"query": EVERYTHING, "rescore": ttc_rescore()}
    for api in ("_count", "_delete_by_query", "_async_search", "_eql/search"):
        reply = call(stack.gateway, "POST", f"/{stack.index}/{api}", body)
        assert 400 <= reply.status <= 405
        assert call(stack.engine, "POST", f"/{stack.index}/{api}", body).status == reply.status
    assert call(stack.engine, "GET", f"/{stack.index}/_count").json()["count"] == 60


def test_answers_of_several_searches_keep_their_form(stack: SearchStack) -> None:
    native = {"query": EVERYTHING, "size": 2, "aggs": {"g": {"terms": {"field": "group.keyword", "size": 1}}}}
    lines = [
        {},
        native | {"rescore": ttc_rescore()},
        {"index": "absent"},
        native | {"rescore": ttc_rescore()},
        {},
        native,
    ]
    raw = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    target = f"/{stack.index}/_msearch?typed_keys=true&rest_total_hits_as_int=true&max_concurrent_searches=1"
    headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    rescored, absent, plain = call(stack.gateway, "POST", target, gzip.compress(raw), headers).json()["responses"]
    assert rescored["hits"]["total"] == plain["hits"]["total"] == 60
    assert rescored["aggregations"] == plain["aggregations"]
    assert list(rescored["aggregations"]) == ["sterms#g"]
    assert absent["status"] == 404
    assert absent["error"]["type"] == "index_not_found_exception"

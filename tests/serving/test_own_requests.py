"""What the gateway asks in addition never changes which documents are answered, and never becomes an error."""

import asyncio
import io
import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.serving.logs import configure_logs
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack, make_index, write
from tests.serving.corpus import CATS, corpus

TWIN = {"title": "The cat", "text": "A cat drinks milk.", "kind": "animal"}
MANY = ["number", *(f"n{number}" for number in range(97))]
FARMER = {"match": {"text": "farmer"}}


@pytest.fixture(scope="module")
def place(stack: SearchStack, encoder: Encoder) -> Iterator[SearchStack]:
    """The corpus with twelve documents of equal text, which the words of the query miss, and a family of documents."""
    name = f"test-own-{uuid.uuid4().hex[:8]}"
    spec = make_index(stack.engine, name, encoder, shards=1, documents=[])
    family = {"type": "join", "relations": {"parent": "child"}}
    numbers = {name: {"type": "integer"} for name in MANY}
    fields = {"properties": {"family": family, "suggest": {"type": "completion"}, **numbers}}
    assert call(stack.engine, "PUT", f"/{name}/_mapping", fields).status == 200
    documents = [{**one, "family": "parent", "suggest": one["title"]} for one in corpus()]
    documents += [{**TWIN, "_id": f"copy-{number}", "number": 100 + number} for number in range(12)]
    asyncio.run(write(stack.engine, name, encoder, documents))
    for number in range(18):
        child = {"family": {"name": "child", "parent": f"d{number}"}, "age": number}
        assert call(stack.engine, "PUT", f"/{name}/_doc/child{number}?routing=d{number}", child).status == 201
    call(stack.engine, "POST", f"/{name}/_refresh")
    yield replace(stack, index=name, spec=spec)
    call(stack.engine, "DELETE", f"/{name}")


def ranked(place: SearchStack, **body: Any) -> Reply:
    url = body.pop("url", "")
    window = body.pop("window_size", 20)
    section = {"query_text": CATS, **body.pop("ttc", {})}
    asked = {"query": FARMER, "size": 5, "rescore": {"window_size": window, "ttc": section}, **body}
    reply = search(place.gateway, place.index, asked, url)
    assert reply.status == 200, reply.body
    return reply


def copies(ids: list[str]) -> list[str]:
    return sorted((name for name in ids if name.startswith("copy")), key=lambda name: int(name[5:]))


@pytest.mark.parametrize(
    "more", [{}, {"explain": True}, {"size": 20}, {"window_size": 60, "size": 40}, {"_source": False}]
)
def test_documents_of_equal_text_that_join_are_there_once_each(place: SearchStack, more: dict[str, Any]) -> None:
    for _ in range(2):
        reply = ranked(place, **more)
        ids = reply.ids
        assert len(ids) == len(set(ids)) == more.get("size", 5)
        if more.get("size", 5) >= 20:
            assert copies(ids) == [f"copy-{number}" for number in range(12)]
        else:
            assert len(copies(ids)) >= 3


def test_documents_of_equal_text_that_join_in_an_msearch(place: SearchStack) -> None:
    body = {"query": FARMER, "size": 20, "rescore": {"window_size": 20, "ttc": {"query_text": CATS}}}
    reply = call(place.gateway, "POST", "/_msearch", [{"index": place.index}, body] * 2)
    for response in reply.json()["responses"]:
        ids = [hit["_id"] for hit in response["hits"]["hits"]]
        assert len(ids) == len(set(ids)) == 20
        assert copies(ids) == [f"copy-{number}" for number in range(12)]


def test_a_document_whose_twin_is_in_the_window_joins(place: SearchStack) -> None:
    """The window holds one of the twelve."""
    query = {"bool": {"should": [FARMER, {"constant_score": {"filter": {"ids": {"values": ["copy-3"]}}, "boost": 50}}]}}
    for size in (5, 20):
        ids = ranked(place, query=query, size=size).ids
        assert len(ids) == len(set(ids)) == size
    assert copies(ids) == [f"copy-{number}" for number in range(12)]


FAMILY = {"has_child": {"type": "child", "query": {"match_all": {}}, "inner_hits": {"_source": ["age"]}}}


@pytest.mark.parametrize("query", [FAMILY, {"bool": {"must": [{"match": {"text": "cat farmer child"}}, FAMILY]}}])
@pytest.mark.parametrize("url", ["", "?allow_partial_search_results=false"])
def test_inner_hits_of_children(place: SearchStack, query: dict[str, Any], url: str) -> None:
    plain = search(place.engine, place.index, {"query": query, "size": 20})
    assert len(plain.ids) > 10
    reply = ranked(place, url=url, query=query, size=5, window_size=100)
    assert reply.json()["ttc"]["applied"]
    assert reply.json()["_shards"] == plain.json()["_shards"]
    assert len(reply.ids) == 5
    inner = {hit["_id"]: hit["inner_hits"] for hit in plain.json()["hits"]["hits"]}
    for hit in reply.json()["hits"]["hits"]:
        assert hit["inner_hits"]["child"]["hits"]["hits"][0]["_id"] == f"child{hit['_id'][1:]}"
        assert hit["inner_hits"]["child"]["hits"]["total"] == inner[hit["_id"]]["child"]["hits"]["total"]


def unranked(place: SearchStack, reply: Reply, plain: dict[str, Any]) -> None:
    expected = search(place.engine, place.index, plain)
    assert expected.status == 200, expected.body
    assert reply.ids == expected.ids
    assert reply.headers["x-ttc-applied"] == "false"
    assert reply.json()["ttc"]["applied"] is False
    assert "the engine refused" in reply.json()["ttc"]["reason"]


def test_docvalue_fields_up_to_the_limit_of_the_engine(place: SearchStack) -> None:
    plain = {"query": FARMER, "size": 5, "docvalue_fields": MANY}
    reply = ranked(place, **plain)
    unranked(place, reply, plain)
    assert reply.json()["hits"]["hits"][0]["fields"].keys() == {"number"}
    failing = {"query": FARMER, "rescore": {"ttc": {"query_text": CATS, "on_error": "fail"}}}
    assert search(place.gateway, place.index, plain | failing).status == 400


def test_clauses_up_to_the_limit_of_the_engine(place: SearchStack) -> None:
    clauses = [{"match": {"text": f"word{number}"}} for number in range(1023)]
    plain = {"query": {"bool": {"should": [FARMER, *clauses]}}, "size": 5}
    expected = search(place.engine, place.index, plain)
    assert expected.status == 200
    for window in (6, 60):
        reply = ranked(place, **plain, window_size=window)
        assert reply.json()["hits"]["total"] == expected.json()["hits"]["total"]
        if not reply.json()["ttc"]["applied"]:
            assert reply.ids == expected.ids


def test_a_window_of_results_up_to_the_limit_of_the_index(place: SearchStack) -> None:
    setting = {"index.max_result_window": 50}
    try:
        assert call(place.engine, "PUT", f"/{place.index}/_settings", setting).status == 200
        for size, window in ((20, 40), (5, 40)):
            reply = ranked(place, size=size, window_size=window)
            assert reply.json()["ttc"]["applied"], reply.body
            assert reply.json()["ttc"]["candidates"]["joined"] > 0
        default = search(place.gateway, place.index, {"query": FARMER, "rescore": {"ttc": {"query_text": CATS}}})
        unranked(place, default, {"query": FARMER})
        too_many = {"query": FARMER, "size": 51}
        expected = search(place.engine, place.index, too_many)
        refused = search(place.gateway, place.index, too_many | {"rescore": {"ttc": {"query_text": CATS}}})
        assert refused.status == expected.status == 400
        assert refused.reason == expected.reason
    finally:
        call(place.engine, "PUT", f"/{place.index}/_settings", {"index.max_result_window": None})


def test_one_refused_search_of_an_msearch(place: SearchStack) -> None:
    fields = MANY
    body = {"query": FARMER, "size": 5, "rescore": {"ttc": {"query_text": CATS}}}
    bodies = [body | {"docvalue_fields": fields}, body, body | {"query": {"range": {"number": {"gte": "x"}}}}]
    lines = [line for one in bodies for line in ({"index": place.index}, one)]
    reply = call(place.gateway, "POST", "/_msearch", lines)
    first, second, third = reply.json()["responses"]
    assert [hit["_id"] for hit in first["hits"]["hits"]] == search(
        place.engine, place.index, {"query": FARMER, "size": 5}
    ).ids
    assert (first["ttc"]["applied"], second["ttc"]["applied"]) == (False, True)
    assert third["status"] == 400


def test_a_completion_suggester_beside_a_wide_window(place: SearchStack) -> None:
    suggest = {"titles": {"prefix": "The c", "completion": {"field": "suggest", "size": 3}}}
    body = {"query": FARMER, "size": 5, "suggest": suggest, "_source": ["number"]}
    plain = search(place.engine, place.index, body).json()["suggest"]
    assert plain["titles"][0]["options"]
    for window in (100, 6):
        reply = ranked(place, **body, window_size=window)
        assert reply.json()["ttc"]["applied"]
        assert reply.json()["suggest"] == plain


def test_parts_of_hits_that_only_the_gateway_asks_for(place: SearchStack) -> None:
    reply = ranked(place, highlight={"fields": {"*": {}}}, window_size=100)
    shown = [hit.get("highlight", {}).keys() for hit in reply.json()["hits"]["hits"]]
    assert all(names <= {"text", "title"} for names in shown)
    children = {
        "query": {"has_parent": {"parent_type": "parent", "query": {"match_all": {}}}},
        "stored_fields": "_none_",
    }
    reply = ranked(place, **children, ttc={"candidates": {"knn": 0}})
    assert reply.json()["hits"]["hits"]
    for hit in reply.json()["hits"]["hits"]:
        assert hit.keys() == {"_index", "_score"}


@pytest.mark.parametrize(
    "param",
    [
        "ignore_throttled=true", "seq_no_primary_term=true", "stats=a", "docvalue_fields=number",
        "stored_fields=number", "track_scores=true", "terminate_after=0", "sort=_score",
        "phase_took=true", "cancel_after_time_interval=10s", "search_pipeline=_none",
        "include_named_queries_score=true", "_source=title", "_source_excludes=text", "version=false", "explain=true",
        "search_type=dfs_query_then_fetch",
    ],
)  # fmt: skip
def test_url_parameters_that_do_not_say_what_is_found(place: SearchStack, param: str) -> None:
    plain = search(place.engine, place.index, {"query": FARMER, "size": 20}, f"?{param}")
    if plain.status != 200:
        return  # this engine has no such parameter
    for size in (5, 20):
        reply = ranked(place, url=f"?{param}", size=size)
        assert "reason" not in reply.json()["ttc"]["candidates"]
        assert reply.json()["ttc"]["candidates"]["joined"] > 0
        assert len(set(reply.ids)) == size
        without = {"_score", "_id", "_source", "fields", "sort"}
        assert {key for hit in reply.json()["hits"]["hits"] for key in hit} - without == {
            key for hit in plain.json()["hits"]["hits"] for key in hit
        } - without


def test_the_first_hits_are_the_same_on_a_page_of_any_size(place: SearchStack) -> None:
    """The window ends where the caller says; the hits after it follow in the engine's order."""
    pages = [ranked(place, size=size, window_size=20) for size in (10, 20, 30, 60)]
    assert len({tuple(page.ids[:10]) for page in pages}) == 1
    assert {page.json()["ttc"]["window"] for page in pages} == {20}
    joined = pages[0].json()["ttc"]["candidates"]["joined"]
    first = search(place.engine, place.index, {"query": FARMER, "size": 60}).ids
    assert pages[3].ids[20 + joined :] == [name for name in first[20:] if name not in pages[3].ids[: 20 + joined]]
    assert pages[3].json()["hits"]["total"]["value"] == len(pages[3].ids) > len(first)


def test_collapse_with_a_native_rescorer_and_a_section(place: SearchStack) -> None:
    native = {"window_size": 10, "query": {"rescore_query": {"match": {"text": "snow"}}}}
    section = {"window_size": 40, "ttc": {"query_text": CATS}}
    body = {"query": FARMER, "collapse": {"field": "group.keyword"}, "rescore": [native, section], "size": 20}
    reply = search(place.gateway, place.index, body)
    assert reply.status == 200, reply.body
    assert reply.json()["ttc"]["applied"]
    groups = [hit.get("fields", {}).get("group.keyword", [None])[0] for hit in reply.json()["hits"]["hits"]]
    assert len(groups) == len(set(groups)) == 8  # seven, and the documents without one


def scored_windows(place: SearchStack) -> float:
    text = call(place.gateway, "GET", "/_ttc/metrics").body.decode()
    [count] = [line for line in text.splitlines() if line.startswith('es_ttc_stage_seconds_count{stage="score"}')]
    return float(count.rpartition(" ")[2])


def test_a_window_that_is_ranked_twice_is_counted_once(place: SearchStack) -> None:
    """Documents of equal text on the page make the gateway rank complete hits after bare ones."""
    assert copies(ranked(place).ids)
    before = scored_windows(place)
    assert copies(ranked(place).ids)
    assert scored_windows(place) == before + 1


def test_a_request_that_is_answered_with_an_error_is_not_logged_as_applied(place: SearchStack) -> None:
    logged = io.StringIO()
    configure_logs(logging.DEBUG)
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(logged)
    try:
        for section in ({"method": "no such"}, {"query_text": CATS}):
            search(place.gateway, place.index, {"query": FARMER, "rescore": {"ttc": section}})
    finally:
        handler.setStream(io.StringIO())
    entries = [orjson.loads(line) for line in logged.getvalue().splitlines()]
    answered = [(entry["status"], entry["applied"]) for entry in entries if entry["event"] == "answered"]
    assert answered == [(400, False), (200, True)]

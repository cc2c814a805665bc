"""Searches of a secured engine: credentials are passed on, hidden documents neither show nor count."""

import base64
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from tests.rescorers.test_learned import stump, written
from tests.serving.client import Reply, call
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING, corpus, ttc_rescore
from tests.serving.security.conftest import ANN, BEN, HIDDEN_FROM, INDEX, MAY_SEE, ROLES, api_key, asked, settle
from tests.support.learned import gateway_with
from tests.support.secured_node import ADMIN, PASSWORD, SUPERUSER, basic

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("rescore", [{}, {"rescore": ttc_rescore()}])
def test_credentials_are_the_engines_to_judge(secured: SearchStack, rescore: dict[str, Any]) -> None:
    key = api_key(secured.engine, {"all": {"indices": [{"names": [INDEX], "privileges": ["read"]}]}})
    elsewhere = api_key(secured.engine, {"other": {"indices": [{"names": ["others"], "privileges": ["read"]}]}})
    for headers, status in (
        (ADMIN, 200),
        (ANN, 200),
        (key, 200),
        (ADMIN | {"es-security-runas-user": "ann"}, 200),
        ({}, 401),
        (basic(SUPERUSER, "wrong"), 401),
        (basic("nobody", PASSWORD), 401),
        ({"authorization": "ApiKey " + base64.b64encode(b"no:key").decode()}, 401),
        ({"authorization": "Bearer nothing"}, 401),
        (elsewhere, 403),
        (ANN | {"es-security-runas-user": SUPERUSER}, 403),
    ):
        direct, through = asked(secured.engine, headers), asked(secured.gateway, headers, **rescore)
        assert through.status == direct.status == status, through.body
        assert set(direct.headers) - set(through.headers) <= {"content-length", "transfer-encoding"}
        if status == 200:
            assert set(through.ids) == set(direct.ids)
        else:
            assert through.json() == direct.json()
            assert through.headers.get("www-authenticate") == direct.headers.get("www-authenticate")


def test_hidden_documents_are_not_seen_nor_counted_nor_scored(secured: SearchStack) -> None:
    everything = asked(secured.gateway, ADMIN, rescore=ttc_rescore())  # and now the memory holds all of them
    assert len(everything.ids) == 60
    visible = [(one, score) for one, score in zip(everything.ids, everything.scores, strict=True) if one in MAY_SEE]
    aggregation = {"all": {"global": {}}, "most": {"max": {"field": "number"}}}
    runs_as_ann = ADMIN | {"es-security-runas-user": "ann"}
    key = api_key(
        secured.engine, {"low": {"indices": [{"names": [INDEX], "privileges": ["read"], **ROLES["low_numbers"]}]}}
    )
    for headers in (ANN, runs_as_ann, key):
        reply = asked(secured.gateway, headers, rescore=ttc_rescore(), aggs=aggregation)
        assert list(zip(reply.ids, reply.scores, strict=True)) == visible
        answer = reply.json()
        assert answer["ttc"]["window"] == answer["hits"]["total"]["value"] == len(MAY_SEE)
        assert answer["aggregations"]["most"]["value"] < HIDDEN_FROM
        pages = [
            asked(secured.gateway, headers, rescore=ttc_rescore(), size=7, **{"from": start})
            for start in range(0, 35, 7)
        ]
        assert sorted(one for page in pages for one in page.ids) == sorted(MAY_SEE)
        detail = asked(secured.gateway, headers, rescore=ttc_rescore("mmr", detail=True))
        nearest = {hit["_ttc"].get("nearest") for hit in detail.json()["hits"]["hits"]}
        assert nearest - {None} <= MAY_SEE
        grouped = asked(secured.gateway, headers, rescore=ttc_rescore(), collapse={"field": "group.keyword"})
        assert set(grouped.ids) <= MAY_SEE


HIDDEN = {document["_id"] for document in corpus()} - MAY_SEE
EVERYTHING_THAT_COUNTS = {
    "aggs": {"numbers": {"terms": {"field": "number", "size": 60}}, "best": {"top_hits": {"size": 60}}},
    "collapse": {"field": "group.keyword", "inner_hits": {"name": "members", "size": 60}},
    "explain": True,
    "track_total_hits": True,
}


def assert_nothing_hidden(reply: Reply) -> None:
    """Check that no count, bucket, inner hit or explanation is of a document that the caller may not see."""
    answer = reply.json()
    buckets = answer["aggregations"]["numbers"]["buckets"]
    members = [hit["inner_hits"]["members"]["hits"]["hits"] for hit in answer["hits"]["hits"]]
    assert answer["ttc"]["candidates"]["joined"] > 0
    assert {bucket["key"] for bucket in buckets} == {int(one["_id"][1:]) for hits in members for one in hits}
    assert sum(bucket["doc_count"] for bucket in buckets) == answer["hits"]["total"]["value"] <= len(MAY_SEE)
    assert all(f'"{name}"'.encode() not in reply.body for name in HIDDEN)


def test_hidden_documents_do_not_join_a_window(secured: SearchStack) -> None:
    """What only kNN finds is bound by rights too: words of a document that hides lead to others that do not."""
    words = {"match": {"text": "the farmer watches before rain"}}
    blend = {"window_size": 8, "ttc": {"query_text": "snow and rain", "detail": True}}

    def blended(headers: dict[str, str], query: Any = words, **more: Any) -> Reply:
        return call(
            secured.gateway,
            "POST",
            f"/{INDEX}/_search",
            {"query": query, "size": 8, "rescore": blend, "_source": ["number"], **more},
            headers,
        )

    everything = {one for start in (0, 8) for one in blended(ADMIN, **{"from": start}).ids}
    assert not everything <= MAY_SEE  # without rights hidden ones would join
    for headers in (ANN, ADMIN | {"es-security-runas-user": "ann"}):
        for query in (words, {"match": {"text": "zebra"}}):
            for _ in range(2):  # the second search for candidates goes out beside the first pass
                pages = [blended(headers, query, **{"from": start}) for start in (0, 8)]
                told = pages[0].json()["ttc"]["candidates"]
                assert told["joined"] > 0, told
                assert {one for page in pages for one in page.ids} <= MAY_SEE
                assert_nothing_hidden(blended(headers, query, size=60, **EVERYTHING_THAT_COUNTS))
                body = {"query": query, "size": 8, "rescore": blend, **EVERYTHING_THAT_COUNTS}
                several = call(secured.gateway, "POST", "/_msearch", [{"index": INDEX}, body], headers)
                assert {hit["_id"] for hit in several.json()["responses"][0]["hits"]["hits"]} <= MAY_SEE
                assert all(f'"{name}"'.encode() not in several.body for name in HIDDEN)
    blind = blended(BEN)  # may not see the fields of features: no vector of his is searched
    assert blind.status in (200, 400)
    if blind.status == 200:
        assert blind.json()["ttc"].get("candidates", {"joined": 0})["joined"] == 0
    elsewhere = api_key(secured.engine, {"other": {"indices": [{"names": ["others"], "privileges": ["read"]}]}})
    assert blended(elsewhere).status == 403
    assert blended({}).status == 401


def test_a_filtered_alias_and_rights_bind_what_joins_together(secured: SearchStack) -> None:
    alias, odd = f"{INDEX}-odd", {"terms": {"number": list(range(1, 60, 2))}}
    settle(secured.engine, "/_aliases", {"actions": [{"add": {"index": INDEX, "alias": alias, "filter": odd}}]})
    indices = [{"names": [alias], "privileges": ["read", "view_index_metadata"], **ROLES["low_numbers"]}]
    alone = api_key(secured.engine, {"odd": {"indices": indices}})  # without any right on the index itself
    indices[0]["names"].append(INDEX)
    both = api_key(secured.engine, {"odd": {"indices": indices}})
    body = {
        "query": {"match": {"text": "the farmer watches before rain"}},
        "size": 16,
        "rescore": {"window_size": 8, "ttc": {"query_text": "snow and rain"}},
    }
    permitted = {
        document["_id"] for document in corpus() if document["number"] < HIDDEN_FROM and document["number"] % 2
    }
    try:
        for headers in (both, alone):
            for _ in range(2):  # the second search for candidates goes out beside the first pass
                reply = call(secured.gateway, "POST", f"/{alias}/_search", body, headers)
                assert reply.status == 200, reply.body
                assert reply.json()["ttc"]["candidates"]["joined"] > 0
                assert set(reply.ids) <= permitted
    finally:
        settle(secured.engine, "/_aliases", {"actions": [{"remove": {"index": INDEX, "alias": alias}}]})


def test_a_model_reads_numbers_with_the_callers_rights(secured: SearchStack, encoder: Encoder, tmp_path: Path) -> None:
    fields = [{"name": "number"}]
    written(tmp_path, "mine", {**stump(feature=[4], threshold=[14.5], default_left=[False]), "fields": fields})
    with gateway_with(tmp_path, secured.engine, encoder) as gateway:
        learned = {"window_size": 60, "ttc": {"method": "learned", "query_text": CATS, "detail": True}}
        everything = asked(gateway, ADMIN, rescore=learned)
        assert len(everything.ids) == 60
        reply = asked(gateway, ANN, rescore=learned)
        assert set(reply.ids) == MAY_SEE
        above = {one for one, score in zip(reply.ids, reply.scores, strict=True) if score > 0.5}
        assert above == {document["_id"] for document in corpus() if 15 <= document["number"] < HIDDEN_FROM}
        without = {"field_security": {"grant": ["*"], "except": ["number"]}}
        indices = [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **without}]
        blind = api_key(secured.engine, {"blind": {"indices": indices}})
        for _ in range(2):  # whatever others have been answered
            refused = asked(gateway, blind, rescore=learned)
            assert refused.json()["ttc"]["applied"] is False, refused.body
            assert "[number], and there is none that this caller may read" in refused.json()["ttc"]["reason"]
        opened = call(gateway, "POST", f"/{INDEX}/_pit?keep_alive=1m", headers=blind).json()
        body = {"query": EVERYTHING, "size": 60, "rescore": learned, "pit": {"id": opened["id"]}}
        inside = call(gateway, "POST", "/_search", body, blind)
        assert inside.json()["ttc"]["applied"] is False, inside.body


def test_hidden_documents_stay_hidden_in_several_searches_and_points_in_time(secured: SearchStack) -> None:
    asked(secured.gateway, ADMIN, rescore=ttc_rescore())
    lines: list[dict[str, Any]] = [{"index": INDEX}, {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore()}]
    several = call(secured.gateway, "POST", "/_msearch", lines * 2, ANN)
    for response in several.json()["responses"]:
        assert {hit["_id"] for hit in response["hits"]["hits"]} == MAY_SEE
    opened = call(secured.gateway, "POST", f"/{INDEX}/_pit?keep_alive=1m", headers=ANN).json()
    body = {"query": EVERYTHING, "size": 60, "rescore": ttc_rescore(), "pit": {"id": opened["id"]}}
    reply = call(secured.gateway, "POST", "/_search", body, ANN)
    assert set(reply.ids) == MAY_SEE
    assert reply.json()["ttc"]["applied"] is True


def test_features_that_a_caller_may_not_read_do_not_serve_him_from_memory(secured: SearchStack) -> None:
    assert asked(secured.gateway, ADMIN, rescore=ttc_rescore()).json()["ttc"]["applied"] is True
    for target in (INDEX, "_all", "*"):
        reply = call(
            secured.gateway, "POST", f"/{target}/_search", {"query": EVERYTHING, "rescore": ttc_rescore()}, BEN
        )
        assert (reply.json()["ttc"]["applied"], reply.json()["ttc"]["scored"]) == (False, 0), reply.body


@pytest.mark.parametrize("source", [True, False])
def test_passages_have_no_text_of_a_field_that_the_caller_may_not_read(secured: SearchStack, source: bool) -> None:
    fields = {"field_security": {"grant": ["*"], "except": ["text"]}}
    rights = {"indices": [{"names": [INDEX], "privileges": ["read", "view_index_metadata"], **fields}]}
    section = ttc_rescore(passages=2, context=5, timeout="60s", on_error="fail")
    reply = asked(secured.gateway, api_key(secured.engine, {"titles": rights}), rescore=section, _source=source)
    passages = [passage for hit in reply.json()["hits"]["hits"] for passage in hit["_ttc"]["passages"]]
    assert {(passage["field"], "text" in passage) for passage in passages} == {("title", True), ("text", False)}

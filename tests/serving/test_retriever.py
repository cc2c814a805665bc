"""A section beside Elasticsearch's `retriever`: the retriever's first hits are the window."""

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from es_ttc.errors import InvalidRequest
from es_ttc.serving.admin.search_schema import search_body_schema
from es_ttc.serving.plan.items import with_rescore
from es_ttc.serving.plan.plan import plan_search
from tests.serving.client import call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS
from tests.support.per_engine import PerEngine

MATCH: dict[str, Any] = {"match": {"text": CATS}}
STANDARD: dict[str, Any] = {"standard": {"query": MATCH, "filter": {"range": {"number": {"lt": 40}}}}}
RESCORER: dict[str, Any] = {
    "rescorer": {
        "retriever": STANDARD,
        "rescore": {"window_size": 7, "query": {"rescore_query": {"match": {"text": "child"}}}},
    }
}
NEAREST: dict[str, Any] = {"knn": {"field": "ttc.vector", "query_text": CATS, "k": 20, "num_candidates": 60}}


@pytest.fixture
def shop(elasticsearch_url: str, all_stacks: PerEngine[SearchStack]) -> SearchStack:
    return all_stacks.of(elasticsearch_url)


@pytest.mark.parametrize(("retriever", "window"), [(STANDARD, None), (RESCORER, 7), (NEAREST, 20)])
def test_the_first_hits_of_a_retriever_are_the_window(
    shop: SearchStack, retriever: dict[str, Any], window: int | None
) -> None:
    body = {"retriever": retriever, "size": 5, "aggs": {"groups": {"terms": {"field": "group.keyword"}}}}
    plain = search(shop.gateway, shop.index, body).json()
    reply = search(shop.gateway, shop.index, body | {"ext": {"ttc": {"method": "spectral", "detail": True}}})
    assert (reply.status, reply.headers["x-ttc-applied"]) == (200, "true")
    found, total = reply.json(), plain["hits"]["total"]["value"]
    assert found["ttc"]["window"] == (window or total)
    assert found["hits"]["total"] == plain["hits"]["total"]
    assert found["aggregations"] == plain["aggregations"]
    whole = search(shop.engine, shop.index, {"retriever": RESCORER, "size": 7}) if window == 7 else None
    assert whole is None or {*reply.ids} <= {*whole.ids}
    ids = [f"d{number}" for number in range(60)]
    same = {"method": "spectral", "query_text": CATS}
    ranked = search(shop.gateway, shop.index, {"query": {"ids": {"values": ids}}, "size": 60, "rescore": {"ttc": same}})
    scores = dict(zip(ranked.ids, ranked.scores, strict=True))
    assert reply.scores == [scores[one] for one in reply.ids] == sorted(reply.scores, reverse=True)
    pages = [search(shop.gateway, shop.index, body | {"ext": {"ttc": same}, "from": start}).ids for start in (0, 5)]
    assert pages[0] == reply.ids
    assert not {*pages[0]} & {*pages[1]}
    assert len(pages[1]) == min(5, found["ttc"]["window"] - 5)


def test_retriever_with_candidates_or_a_rescore_beside_it(shop: SearchStack) -> None:
    ttc = {"method": "blend", "query_text": CATS}
    found = search(shop.gateway, shop.index, {"retriever": STANDARD, "ext": {"ttc": ttc}}).json()["ttc"]
    assert (found["applied"], found["candidates"]["joined"]) == (True, 0)
    beside = search(shop.gateway, shop.index, {"retriever": STANDARD, "rescore": {"ttc": ttc}})
    assert (beside.status, "[ext.ttc]" in beside.reason) == (400, True)
    wide = {"retriever": RESCORER, "size": 8}
    refused = search(shop.gateway, shop.index, wide | {"ext": {"ttc": ttc}})
    assert (refused.status, refused.reason) == (400, search(shop.engine, shop.index, wide).reason)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"window_size": "7"}, "[ext.ttc.window_size]"),
        ({"window_size": 0}, "[ext.ttc.window_size]"),
        ({"window": 7}, "[window_size]"),
        ({"method": "spectral", "timeout": 5}, "[ext.ttc.timeout]"),
        ({"candidates": {"knn": -1}}, "[ext.ttc.candidates.knn]"),
        ([7], "[ext.ttc]"),
        (None, "[ext.ttc]"),
    ],
)
def test_errors_name_the_place_in_ext(shop: SearchStack, section: Any, field: str) -> None:
    body = {"retriever": STANDARD, "ext": {"ttc": section}}
    single = search(shop.gateway, shop.index, body)
    several = call(shop.gateway, "POST", "/_msearch", [{"index": shop.index}, body]).json()
    for status, reason in (
        (single.status, single.reason),
        (several["responses"][0]["status"], several["responses"][0]["error"]["reason"]),
    ):
        assert (status, field in reason) == (400, True), reason
    schema = Draft202012Validator(search_body_schema())
    assert not schema.is_valid(body)
    assert schema.is_valid(body | {"ext": {"ttc": {"window_size": 7, "query_text": CATS}}})


@pytest.mark.parametrize(
    ("retriever", "texts", "size", "fetch"),
    [
        ({"rrf": {"retrievers": [STANDARD, {"knn": {"k": 50}}], "rank_window_size": 50}}, (CATS,), 10, 50),
        ({"rrf": {"query": CATS, "fields": ["text"]}}, (CATS,), 10, 10),
        ({"linear": {"retrievers": [{"retriever": STANDARD, "weight": 2}], "rank_window_size": 20}}, (CATS,), 5, 20),
        ({"text_similarity_reranker": {"retriever": STANDARD, "inference_text": CATS}}, (CATS,), 30, 30),
        ({"pinned": {"ids": ["1"], "retriever": {"rule": {"retriever": STANDARD}}}}, (CATS,), 10, 10),
    ],
)
def test_retrievers_of_other_licences_get_no_more_hits_than_they_return(
    retriever: dict[str, Any], texts: tuple[str, ...], size: int, fetch: int
) -> None:
    body = with_rescore({"retriever": retriever, "size": size, "ext": {"other": 1, "ttc": {"window_size": 100}}})
    plan = plan_search(body, [], max_window=300)
    assert plan is not None
    assert (plan.texts, plan.body["size"], plan.body["ext"]) == (texts, fetch, {"other": 1})
    assert plan.body["retriever"] == retriever
    assert "rescore" not in plan.body
    assert "rescore" not in plan.plain


def test_a_window_that_shrinks_shrinks_for_a_reranker_too() -> None:
    reranked = {"params": {"signals": {"dense": 1, "reranker": 1}}, "window_size": 50}
    plan = plan_search(with_rescore({"retriever": RESCORER, "ext": {"ttc": reranked}}), [], max_window=300)
    assert plan is not None
    assert [one.page.window for one in (plan, *plan.later)] == [7, 7]


def test_a_section_of_the_plugin_is_left_to_it() -> None:
    body = {"query": MATCH, "ext": {"ttc": {"query_text": CATS}}}
    assert with_rescore(body) is body
    with pytest.raises(InvalidRequest, match=r"\[rescore\]"):
        with_rescore({"retriever": STANDARD, "rescore": {"query": {}}, "ext": {"ttc": {}}})

"""Parts of a question: their turns, their own words and candidates, and what binds them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.serving.plan.part_words import PartWords
from es_ttc.serving.plan.plan import plan_search
from es_ttc.serving.request.body import with_text
from es_ttc.serving.rescore.parts import in_turns
from es_ttc.serving.rescore.ranking import OrderedScores
from tests.conftest import PRODUCTS
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS, EVERYTHING, WITHOUT_TEXT

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

BIRDS = "an owl sings before rain"
PARTS = (CATS, BIRDS)
STRANGE = "interest rates of the central bank of Brazil"


def by_parts(*parts: str, window: int = 100, **section: Any) -> dict[str, Any]:
    asked = {"query_texts": [*parts], "parts": "each", "on_error": "fail", "timeout": "60s", **section}
    return {"window_size": window, "ttc": asked}


def matching_all(text: str) -> dict[str, Any]:
    """Every document, scored by the words of a text."""
    return {"bool": {"filter": [EVERYTHING], "should": [{"match": {"text": text}}, {"match": {"number": 7}}]}}


def answered(stack: SearchStack, body: dict[str, Any], url: str = "") -> Reply:
    reply = search(stack.gateway, stack.index, body, url)
    assert reply.status == 200, reply.body
    assert (np.diff(reply.scores) <= 0).all()
    return reply


@given(st.integers(1, 4).flatmap(lambda parts: st.lists(st.permutations(range(7)), min_size=parts, max_size=parts)))
def test_after_each_round_the_first_documents_of_all_parts_are_shown(orders: list[list[int]]) -> None:
    scores = np.linspace(1, 0.1, 7).astype(np.float32)
    rankings = [OrderedScores(np.array(order), np.roll(scores, part)) for part, order in enumerate(orders)]
    turns = in_turns(rankings, 8)  # the last one is in no ranking
    assert (turns.ranks[:, 7] == 8).all()
    shown = turns.ranking.order.tolist()
    assert sorted(shown) == [*range(7)]
    assert (np.diff(turns.ranking.scores) <= 0).all()
    start = 0
    for size in range(1, 8):
        firsts = {document for order in orders for document in order[:size]}
        assert set(shown[: len(firsts)]) == firsts
        for rank, document in enumerate(shown[start : len(firsts)], start):
            first, *others = turns.parts_of(document, rank)
            assert orders[first].index(document) == size - 1
            assert {first, *others} == {first} | {
                part for part, order in enumerate(orders) if order.index(document) <= rank
            }
        start = len(firsts)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"match": {"title": {"query": "a", "boost": 2, "_name": "own"}}},
         {"match": {"title": {"query": "X", "boost": 2, "lenient": True}}}),
        ({"multi_match": {"query": "a", "fields": ["title"]}},
         {"multi_match": {"query": "X", "fields": ["title"], "lenient": True}}),
        ({"query_string": {"query": "a AND b", "default_field": "text"}},
         {"simple_query_string": {"query": "X", "fields": ["text"], "flags": "NONE", "lenient": True}}),
        ({"dis_max": {"queries": [{"match_phrase": {"text": "a"}}, {"match_phrase": {"text": "b"}}]}},
         {"dis_max": {"queries": [{"match_phrase": {"text": {"query": "X"}}}], "tie_breaker": 0.0}}),
        ({"bool": {"must": [{"match_phrase": {"a": "a"}}], "should": {"match_phrase": {"b": "b"}},
                   "filter": {"match": {"kind": "c"}}}},
         {"bool": {"should": [{"match_phrase": {"a": {"query": "X"}}}, {"match_phrase": {"b": {"query": "X"}}}]}}),
        ({"bool": {"must": {"match_phrase": {"a": "a"}}, "boost": 3}},
         {"bool": {"should": [{"match_phrase": {"a": {"query": "X"}}}], "boost": 3}}),
        ({"boosting": {"positive": {"nested": {"path": "p", "query": {"match_phrase": {"p": "a"}}, "inner_hits": {}}}}},
         {"nested": {"path": "p", "query": {"match_phrase": {"p": {"query": "X"}}}}}),
        ({"term": {"number": 7}}, None),
        (None, None),
    ],
)  # fmt: skip
def test_a_text_takes_the_place_of_those_of_a_query(query: Any, expected: Any) -> None:
    assert with_text(query, "X") == expected
    assert with_text(with_text(query, "Y"), "X") == expected


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"parts": "each"}, "[query_texts]"),
        ({"parts": "each", "query_text": "a"}, "[query_texts]"),
        ({"parts": "each", "query_texts": ["a"]}, "[query_texts], got 1"),
        ({"parts": "each", "query_texts": ["a", " "]}, "[ttc.query_texts] has an empty text"),
        ({"parts": "each", "query_texts": ["a"] * 17}, "[query_texts], got 17"),
        ({"parts": "all", "query_texts": ["a", "b"]}, "[ttc.parts]"),
        ({"parts": "each", "query_texts": ["a", "b"], "method": "rr", "params": {"reranker": "dense"}}, "[rr]"),
        ({"parts": "each", "query_texts": ["a", "b"], "params": {"reranker": {}}}, "the only item"),
    ],
)
def test_parts_that_cannot_take_turns_are_refused(section: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan_search({"query": EVERYTHING, "rescore": {"ttc": section}}, [], max_window=100)
    assert named in str(refused.value)


@on_both
def test_parts_take_turns_in_the_rankings_that_each_has_by_itself(stack: SearchStack) -> None:
    rankings = [
        answered(stack, {"query": matching_all(part), "size": 60, "rescore": {"ttc": {"query_text": part}}}).ids
        for part in PARTS
    ]
    expected: list[str] = []
    for round_of_hits in zip(*rankings, strict=True):
        expected += [name for name in dict.fromkeys(round_of_hits) if name not in expected]
    body = {"query": matching_all("a question of two parts"), "size": 60, "rescore": by_parts(*PARTS)}
    whole = answered(stack, body)
    assert whole.ids == expected
    for rank, hit in enumerate(whole.json()["hits"]["hits"]):
        high = [part for part, ranking in enumerate(rankings) if ranking.index(hit["_id"]) <= rank]
        assert sorted(hit["_ttc"]["parts"]) == high
        assert "matched_queries" not in hit
    pages = [answered(stack, body | {"from": start, "size": 20}) for start in (0, 20, 40)]
    assert [name for page in pages for name in page.ids] == expected
    for page in pages:
        assert [(part["part"], part["rank"]) for part in page.json()["ttc"]["parts"]] == [(0, 1), (1, 2)]


@on_both
def test_each_part_has_candidates_and_one_without_an_answer_is_open(stack: SearchStack) -> None:
    query = {"match": {"text": "our trout hunts at night"}}
    reply = answered(stack, {"query": query, "size": 6, "rescore": by_parts(*PARTS, window=6, detail=True)})
    hits, summary = reply.json()["hits"]["hits"], reply.json()["ttc"]
    assert summary["candidates"]["joined"] > 4
    assert [part["open"] for part in summary["parts"]] == [False, False]
    for place, words in enumerate(("drinks milk", "sings before rain")):
        assert words in hits[place]["_source"]["text"]
        assert hits[place]["_ttc"]["first_pass_rank"] is None
        assert set(hits[place]["_ttc"]["signals"]) == {"lexical", "dense", "spectral", "late_interaction"}
    every = {"query": matching_all("trout"), "rescore": by_parts(*PARTS, STRANGE)}
    parts = answered(stack, every).json()["ttc"]["parts"]
    assert [part["open"] for part in parts] == [False, False, True], parts


@on_both
def test_rules_and_groups_hold_for_the_turns_of_parts(stack: SearchStack) -> None:
    demoted = {"boosting": {"positive": EVERYTHING, "negative": {"range": {"number": {"lt": 10}}}, "negative_boost": 0}}
    pin = {"constant_score": {"filter": {"term": {"number": 50}}, "boost": 1e30}}
    pinned = {"bool": {"must": [{"match": {"text": "hours"}}], "should": [pin]}}
    for query, first in ((demoted, ()), (pinned, ("d50",))):
        body = {"query": query, "size": 20, "rescore": by_parts(*PARTS)}
        reply = answered(stack, body)
        assert reply.ids[: len(first)] == [*first]
        hits = reply.json()["hits"]["hits"]
        assert [hit["_ttc"]["parts"] is None for hit in hits] == [hit["_id"] in first for hit in hits]
        assert WITHOUT_TEXT not in reply.ids
        groups = answered(stack, body | {"collapse": {"field": "group.keyword"}}).json()["hits"]["hits"]
        assert len({hit["_source"]["group"] for hit in groups}) == len(groups) == 7
        assert groups[0]["_id"] == reply.ids[0]
    assert all(int(name[1:]) >= 10 for name in answered(stack, body | {"query": demoted}).ids)
    # and combined scores, of a method without signals
    spectral = by_parts(*PARTS, method="spectral", score_mode="total")
    reply = answered(stack, {"query": EVERYTHING, "size": 2, "rescore": spectral})
    assert reply.json()["ttc"]["parts"] == [{"part": 0, "rank": 1}, {"part": 1, "rank": 2}]


def test_what_a_search_cannot_have_of_its_parts_is_told(stack: SearchStack) -> None:
    body = {"query": {"match": {"text": "a child"}}, "size": 4, "rescore": by_parts(*PARTS)}
    [of_many] = call(stack.gateway, "POST", f"/{stack.index}/_msearch", [{}, body]).json()["responses"]
    assert "_msearch" in of_many["ttc"]["part_words"]["reason"]
    assert len(of_many["ttc"]["parts"]) == 2
    many = {"bool": {"should": [{"match": {f"text{number}": "a" * 99}} for number in range(2000)]}}
    assert "too long" in str(PartWords.of(many, PARTS * 8).reason)
    no_words = answered(stack, body | {"query": {"range": {"number": {"gte": 0}}}}).json()["ttc"]
    assert no_words["part_words"]["applied"] is False
    chunks = by_parts(*PARTS, params={"signals": {"sentences": 1}}, on_error="first_pass")
    fallback = answered(stack, body | {"rescore": chunks}).json()
    assert fallback["ttc"]["applied"] is False
    assert "parts" not in fallback["ttc"]
    assert not any(hit.get("_ttc") for hit in fallback["hits"]["hits"])
    named = {"match": {"text": {"query": "a child", "_name": "own"}}}
    hits = answered(stack, body | {"query": named}, "?include_named_queries_score=true").json()["hits"]["hits"]
    assert {name for hit in hits for name in hit.get("matched_queries", {})} <= {"own"}

"""What a query says by its scores holds after rescoring: pinned documents, functions that bury, scores of any size."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.serving.features.scores import scaled_scores
from es_ttc.serving.rescore.ranking import pinned_count, rank
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS

WORDS = {"match": {"text": "farmer child cat milk"}}
PINS = ("d50", "d58", "d42")
"""Owls, bees and trouts."""
SOLD_OUT = [3, 4, 5, 6]
"""Numbers of cats."""
SECTIONS: list[dict[str, Any]] = [
    {},
    {"method": "spectral"},
    {"method": "hybrid"},
    {"method": "mmr"},
    {"method": "spectral", "score_mode": "total"},
    {"method": "rr", "params": {"reranker": "dense"}},
]


def boosted(*numbers: int, boost: float) -> dict[str, Any]:
    clauses = [
        {"constant_score": {"filter": {"term": {"number": number}}, "boost": boost * (1 - place / 50)}}
        for place, number in enumerate(numbers)
    ]
    return {"bool": {"must": WORDS, "should": clauses}}


def ranked(stack: SearchStack, query: Any, section: dict[str, Any], **more: Any) -> Reply:
    body = {"query": query, "size": 20, "rescore": {"ttc": {"query_text": CATS, **section}}, **more}
    reply = search(stack.gateway, stack.index, body)
    assert reply.status == 200, reply.body
    assert reply.json()["ttc"]["applied"], reply.body
    assert np.isfinite(reply.scores).all()
    assert (np.diff(reply.scores) <= 0).all()
    assert all(score > 0 for score in reply.scores) or more
    return reply


@pytest.mark.parametrize("place", range(len(SECTIONS)))
@pytest.mark.parametrize("boost", [1e6, 1.7e38, 3e38])
def test_pinned_documents_stay_on_top_and_the_others_are_ranked(stack: SearchStack, boost: float, place: int) -> None:
    section = SECTIONS[place]
    plain = ranked(stack, WORDS, section)
    for count in (1, 3):
        numbers = [int(name[1:]) for name in PINS[:count]]
        reply = ranked(stack, boosted(*numbers, boost=boost), section)
        assert reply.ids[:count] == [*PINS[:count]]
        if section.get("method") not in ("hybrid", "mmr"):
            others, shown = ([name for name in one.ids if name not in PINS][:10] for one in (plain, reply))
            assert len(set(others) & set(shown)) >= 8


@pytest.mark.parametrize("place", range(len(SECTIONS)))
def test_scores_of_any_size_are_ranked(stack: SearchStack, place: int) -> None:
    query = {"bool": {"must": WORDS, "filter": {"term": {"kind": "animal"}}, "boost": 1}}
    same = {"bool": {"must": [WORDS], "should": [{"constant_score": {"filter": {"match_all": {}}, "boost": 3e38}}]}}
    assert ranked(stack, same, SECTIONS[place]).ids[0] in ranked(stack, query, SECTIONS[place]).ids


def test_only_pinned_documents_in_a_window_stay_above_those_that_join(stack: SearchStack) -> None:
    """As `pinned` of Elasticsearch scores them, where its organic query finds nothing."""
    pins = [
        {"constant_score": {"filter": {"term": {"number": int(name[1:])}}, "boost": 2.0**127 * (1 + place / 1e6)}}
        for place, name in enumerate(reversed(PINS))
    ]
    reply = ranked(stack, {"bool": {"should": [{"match": {"text": "zebra"}}, *pins]}}, {})
    assert reply.ids[:3] == [*PINS]
    assert len(reply.ids) == 20
    assert reply.json()["ttc"]["candidates"]["joined"] > 0


BURYING: list[dict[str, Any]] = [
    {"function_score": {"query": WORDS, "functions": [{"filter": {"terms": {"number": SOLD_OUT}}, "weight": 0}]}},
    {
        "script_score": {
            "query": WORDS,
            "script": {
                "source": "params.out.contains((int) doc['number'].value) ? 0 : _score",
                "params": {"out": SOLD_OUT},
            },
        }
    },
]


@pytest.mark.parametrize("place", range(len(SECTIONS)))
@pytest.mark.parametrize("query", BURYING)
def test_documents_that_the_query_scores_0_never_rise(stack: SearchStack, query: dict[str, Any], place: int) -> None:
    for size in (100, 20):
        reply = ranked(stack, query, SECTIONS[place], size=size)
        first = search(stack.engine, stack.index, {"query": query, "size": 100})
        buried = [name for name, score in zip(first.ids, first.scores, strict=True) if score == 0]
        assert len(buried) == len(SOLD_OUT)
        if size == 100:
            assert reply.ids[-len(buried) :] == buried
        else:
            assert not set(reply.ids) & set(buried)
    told = reply.json()["ttc"]
    if "candidates" in told:
        assert "reason" not in told["candidates"]


@pytest.mark.parametrize(
    ("scores", "count"),
    [
        ([], 0),
        ([5.0], 0),
        ([5.0, 0.0], 0),
        ([900.0, 0.1], 0),
        ([30.0, 20.0, 0.001], 0),
        ([1e6, 20.0, 10.0], 1),
        ([1e6, 9e5, 20.0], 2),
        ([1e6, 0.0], 1),
        ([1e30, 1e6, 20.0], 2),
        ([3e38, 2.9e38, 2.8e38], 0),
        ([1.7014123e38, 1.7014120e38], 2),
        ([3e38, 1.7e38, 12.0], 2),
    ],
)
def test_which_documents_are_pinned(scores: list[float], count: int) -> None:
    first = np.array(scores, np.float32)
    assert pinned_count(first) == count
    shown = scaled_scores(first, count, 0)
    assert (shown[count:] / max(shown.max(initial=0), 1e-9) >= 0).all()
    assert float(shown.max(initial=0)) <= 1e12


@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=1, max_size=40), st.data())
def test_pinned_documents_keep_their_places_and_no_score_rises(values: list[float], data: st.DataObject) -> None:
    first = np.sort(np.array(values, np.float32))[::-1]
    pinned = data.draw(st.integers(0, len(first)))
    final = np.array(
        data.draw(st.lists(st.floats(0, 1, width=32), min_size=len(first), max_size=len(first))), np.float32
    )
    ranking = rank(first, final, np.ones(len(first), np.bool_), pinned)
    assert ranking.order[:pinned].tolist() == [*range(pinned)]
    assert sorted(ranking.order.tolist()) == [*range(len(first))]
    assert np.isfinite(ranking.scores).all()
    assert (ranking.scores[1:] <= ranking.scores[:-1]).all()


TENTH = {"function_score": {"query": WORDS, "functions": [{"filter": {"terms": {"number": SOLD_OUT}}, "weight": 0.1}]}}
SCRIPT = "_score * (doc['number'].value < 7 ? 0.1 : 1)"
DEMOTED: dict[str, Any] = {
    "boosting": {"boosting": {"positive": WORDS, "negative": {"terms": {"number": SOLD_OUT}}, "negative_boost": 0.1}},
    "function_score": TENTH,
    "with a boost": {"function_score": {**TENTH["function_score"], "boost_mode": "multiply", "boost": 3}},
    "script_score": {"script_score": {"query": WORDS, "script": {"source": SCRIPT}}},
    "in bool": {"bool": {"must": [TENTH], "filter": [{"term": {"kind": "animal"}}]}},
    "without words": {**TENTH, "function_score": {**TENTH["function_score"], "query": {"match_all": {}}}},
}


@pytest.mark.parametrize("method", ["blend", "hybrid"])
@pytest.mark.parametrize("kind", DEMOTED)
def test_a_demotion_multiplies_the_final_score(stack: SearchStack, kind: str, method: str) -> None:
    section = {"method": method, "detail": True}
    plain = ranked(stack, WORDS, section).json()["hits"]["hits"]
    reply = ranked(stack, DEMOTED[kind], section, size=60).json()["hits"]["hits"]
    factors = {hit["_id"]: hit["_ttc"]["factor"] for hit in reply}
    demoted = {f"d{number}" for number in SOLD_OUT}
    least, greatest = min(factors.values()), max(factors.values())
    assert {name for name, factor in factors.items() if factor < greatest / 2} >= demoted & factors.keys() != set()
    assert least == pytest.approx(greatest / 10, rel=1e-3)
    assert demoted & {hit["_id"] for hit in plain[:10]}
    assert not demoted & {hit["_id"] for hit in reply[:10]}
    assert not any("matched_queries" in hit for hit in reply)


def test_should_clause_beside_words_multiplies_the_score_of_candidates_too(stack: SearchStack) -> None:
    query = {
        "bool": {
            "must": [{"match": {"text": "milk"}}],
            "should": [{"constant_score": {"filter": {"term": {"number": 3}}, "boost": 5}}],
        }
    }
    hits = ranked(stack, query, {"detail": True}, explain=True, size=60).json()["hits"]["hits"]
    assert any(hit["_ttc"]["first_pass_rank"] is None for hit in hits)
    [raised] = [hit for hit in hits if hit["_id"] == "d3"]
    assert raised["_ttc"]["factor"] > 1.5
    assert {hit["_ttc"]["factor"] for hit in hits if hit is not raised} == {1.0}
    [scored, factor, *_] = raised["_explanation"]["details"]
    assert factor["value"] == raised["_ttc"]["factor"]
    assert raised["_score"] == pytest.approx(scored["value"] * factor["value"], rel=1e-5)


def test_a_score_mode_of_the_caller_wins_and_other_methods_read_no_factors(stack: SearchStack) -> None:
    for section in ({"score_mode": "replace"}, {"method": "spectral"}):
        hits = ranked(stack, TENTH, {**section, "detail": True}).json()["hits"]["hits"]
        assert not any("factor" in hit["_ttc"] for hit in hits)


def test_the_callers_named_queries_are_as_the_engine_shows_them(stack: SearchStack) -> None:
    named = {"bool": {"must": [TENTH], "should": [{"term": {"kind": {"value": "animal", "_name": "mine"}}}]}}
    for size in (5, 60):  # in two requests, and in one
        hits = ranked(stack, named, {}, size=size).json()["hits"]["hits"]
        assert {tuple(hit["matched_queries"]) for hit in hits} == {("mine",)}


def test_a_query_whose_parts_cannot_be_told_is_ranked_with_the_reason(stack: SearchStack) -> None:
    query = {"dis_max": {"queries": [WORDS, {"term": {"number": 3}}]}}
    assert "dis_max" in ranked(stack, query, {}).json()["ttc"]["factors"]["reason"]


def test_the_bodies_of_the_how_to_are_ranked(stack: SearchStack) -> None:
    page = Path("docs/how-to/keep-your-boosts.md").read_text(encoding="utf-8")
    bodies = [json.loads(block) for block in re.findall(r"```json\n(\{.*?)```", page, flags=re.DOTALL)]
    assert len(bodies) == 5
    types = {"visibility": "keyword", "sold_out": "boolean", "post_date_gmt": "date", "orders_count": "integer"}
    mapping = {"properties": {name: {"type": kind} for name, kind in types.items()}}
    assert call(stack.engine, "PUT", f"/{stack.index}/_mapping", mapping).status == 200
    for body in bodies:
        reply = search(stack.gateway, stack.index, body)
        assert reply.status == 200, reply.body
        assert reply.json()["ttc"]["applied"]
        assert "factors" not in reply.json()["ttc"]

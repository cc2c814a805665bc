"""Why a document is where it is in a search, over HTTP and by the command, on real engines."""

import json
from typing import Any

import pytest

from es_ttc.cli.app import run
from es_ttc.serving.admin.explain import least_changes
from tests.serving.client import Reply, call, search
from tests.serving.conftest import SearchStack
from tests.serving.corpus import CATS

QUERY = {"match": {"text": CATS}}
NARROW: dict[str, Any] = {
    "query": QUERY, "rescore": {"window_size": 5, "ttc": {"candidates": {"knn": 0}}}
}  # fmt: skip


def told(stack: SearchStack, name: str, body: dict[str, Any], status: int = 200) -> Any:
    reply = call(stack.gateway, "POST", "/_ttc/explain", {"index": stack.index, "id": name, "search": body})
    assert reply.status == status, reply.body
    return reply.json() if status == 200 else reply.reason


def ranking(stack: SearchStack, body: dict[str, Any], size: int = 60) -> Reply:
    return search(stack.gateway, stack.index, {"rescore": {"ttc": {}}, **body, "size": size})


def test_the_rank_is_that_of_the_search_and_a_change_of_weights_is_true(stack: SearchStack) -> None:
    body = {"query": QUERY, "size": 3}
    ids = ranking(stack, body).ids
    for rank in (1, 9, len(ids)):
        found = told(stack, ids[rank - 1], body)
        assert (found["rank"], found["found"]) == (rank, len(ids))
    native = search(stack.engine, stack.index, {"query": QUERY, "size": 60})
    found = told(stack, ids[5], body)
    assert found["first_pass_score"] == native.scores[native.ids.index(ids[5])]
    assert found["first_pass_rank"] == 1 + sum(score > found["first_pass_score"] for score in native.scores)
    assert sorted(found["signals"]) == ["dense", "late_interaction", "lexical", "spectral"]
    for change in [change for name in ids[3:9] for change in told(stack, name, body)["weights"]]:
        assert change["rank"] <= 3


def test_explain_names_the_factor_of_clauses_beside_words(stack: SearchStack) -> None:
    query = {"boosting": {"positive": QUERY, "negative": {"term": {"number": 3}}, "negative_boost": 0.1}}
    found = told(stack, "d3", {"query": query})
    assert found["factor"] == pytest.approx(0.1)
    assert any("multiplies its score by 0.1;" in reason for reason in found["reasons"])
    assert not found["weights"]  # the factor is no weight


def test_a_weight_is_changed_no_more_than_needed() -> None:
    hits = [{"a": {"share": a}, "b": {"share": b}} for a, b in ((2.0, 0.0), (1.0, 0.5), (0.5, 0.9))]
    assert {one.signal: one.times for one in least_changes(hits, 2, 1)} == {"b": 2.0, "a": 0.5}
    assert {one.signal: one.times for one in least_changes(hits, 2, 2)} == {"b": 1.25, "a": 0.5}
    assert not least_changes([*hits, {"a": {"share": -1.0}, "b": {"share": -1.0}}], 3, 2)


def test_clauses_and_words_that_keep_a_document_away(stack: SearchStack) -> None:
    clauses = {
        "must": [QUERY],
        "filter": [{"term": {"number": 3}}, {"bool": {"must_not": {"match": {"text": "sofa"}}}}],
        "should": {"term": {"number": 9}},
    }
    found = told(stack, "d0", {"query": {"bool": clauses}})  # a cat, asleep on the sofa
    assert (found["rank"], found["matches"]) == (None, False)
    assert [one["path"] for one in found["failed"]] == ["query.bool.filter[0]", "query.bool.filter[1].bool.must_not"]
    assert found["lacking_words"] == ["which", "drinks", "milk"]
    last = search(stack.engine, stack.index, {"query": QUERY, "size": 60}).ids[-1]
    outside = told(stack, last, {**NARROW, "size": 1})
    assert (outside["rank"], outside["first_pass_rank"] > 5) == (None, True)
    assert outside["signals"]["dense"]["rank"] >= 1
    either = {"bool": {"should": [{"term": {"number": 3}}, {"term": {"number": 4}}]}}
    assert [one["path"] for one in told(stack, "d0", {"query": either})["failed"]] == ["query.bool.should"]
    posted = told(stack, "d0", {"query": QUERY, "post_filter": {"term": {"number": 3}}, "min_score": 99})
    assert [one["path"] for one in posted["failed"]] == ["post_filter"]
    assert posted["matches"]
    japanese = told(stack, "d7", {"query": {"match": {"text": "猫が牛乳"}}})
    assert "猫" in japanese["lacking_words"]
    assert any("no features" in reason or "nearest" in reason for reason in japanese["reasons"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"query": {"match_all": {}}}, "query_text"),
        ({"query": QUERY, "rescore": {"ttc": {"method": "x"}}}, "[x]"),
        ({"query": QUERY, "rescore": {"ttc": {"min_relevance": "x"}}}, "[ttc.min_relevance]"),
        ({"query": {"ttc": {"method": "rm3", "query_text": CATS}}}, "[query]"),
        ({"retriever": {"standard": {"query": QUERY}}, "ext": {"ttc": {}}}, "[retriever]"),
        ({"query": QUERY, "slice": {"id": 0, "max": 2}}, "[slice]"),
    ],
)
def test_explain_search_that_cannot_be_ranked_says_why(stack: SearchStack, body: dict[str, Any], reason: str) -> None:
    if reason == "query_text":
        assert any(reason in sentence for sentence in told(stack, "d4", body)["reasons"])
    else:
        assert reason in told(stack, "d4", body, 400)
    assert "[nowhere]" in told(stack, "nowhere", {"query": QUERY}, 400)


def test_a_search_without_ids_and_one_of_as_many_clauses_as_an_engine_takes(stack: SearchStack) -> None:
    assert told(stack, "d0", {"query": QUERY, "stored_fields": "_none_"})["rank"]
    words = [f"word{number}" for number in range(600)]
    many = {"bool": {"should": [{"match": {"text": word}} for word in words], "filter": [{"term": {"number": 3}}]}}
    section = {"rescore": {"ttc": {"query_text": CATS}}}
    for query in (many, {"bool": {"must": [{"match": {"text": " ".join(words)}}], "filter": many["bool"]["filter"]}}):
        assert search(stack.gateway, stack.index, {"query": query, **section}).status == 200
        found = told(stack, "d0", {"query": query, **section})
        assert "query.bool.filter[0]" in [one["path"] for one in found["failed"]]


def test_the_command_tells_the_same(stack: SearchStack, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", stack.index, CATS, "--id", "d2", "--engine", stack.engine, "--gateway", stack.gateway]
    assert run([*arguments, "--filter", "number>5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["path"] for one in found["failed"]] == ["query.bool.filter[0]"]
    assert run(arguments) == 0
    assert "late_interaction" in capsys.readouterr().out

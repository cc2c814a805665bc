"""`llm_pick` in the `rescore` hook: the model's ratings decide, and what it fails to rate keeps its place."""

from typing import Any

from tests.serving.client import Reply, call
from tests.serving.query.conftest import Rewritten
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True

RESTING = {"match": {"text": "rest treated"}}


def pick(rewritten: Rewritten, **params: Any) -> Reply:
    section = {"method": "llm_pick", "params": params, "timeout": "20s", "detail": True}
    return rewritten.search({"query": RESTING, "rescore": {"window_size": 10, "ttc": section}})


def test_ratings_decide_and_unrated_documents_follow_in_first_pass_order(rewritten: Rewritten) -> None:
    first = rewritten.directly({"query": RESTING}).ids
    assert len(first) == 5
    rewritten.answers["Asthma narrows"] = '{"score": 95}'
    rewritten.answers["A rash is treated"] = "I would say 30 of 100"
    found = pick(rewritten)
    assert found.status == 200, found.body
    assert found.ids[:2] == ["4", "5"]
    assert found.ids[2:] == [one for one in first if one not in ("4", "5")]
    assert found.scores == sorted(found.scores, reverse=True)
    assert found.headers["x-ttc-applied"] == "true"
    asked = len(rewritten.model.asked)
    assert pick(rewritten).ids == found.ids
    assert len(rewritten.model.asked) == asked  # answers are kept by content


def test_an_order_decides_in_the_listwise_form(rewritten: Rewritten) -> None:
    first = rewritten.directly({"query": RESTING}).ids
    rewritten.answers["Order passages by how well they answer"] = "[3] > [3] > [77]"
    found = pick(rewritten, reranker="llm_listwise")
    assert found.ids == [first[2], *(one for one in first if one != first[2])]


def test_a_budget_bounds_the_questions(rewritten: Rewritten) -> None:
    before = len(rewritten.model.asked)
    query = {"match": {"text": "treated rest"}}
    section = {"method": "llm_pick", "query_text": "a new text", "params": {"budget": 2}, "timeout": "20s"}
    found = rewritten.search({"query": query, "rescore": {"window_size": 10, "ttc": section}})
    assert found.json()["ttc"]["scored"] == 2
    assert len(rewritten.model.asked) == before + 2


def test_without_a_model_the_first_pass_is_answered(rewritten: Rewritten) -> None:
    with gateway_to(rewritten.engine, llm_url=None) as gateway:
        body: dict[str, Any] = {"query": RESTING, "rescore": {"window_size": 10, "ttc": {"method": "llm_pick"}}}
        found = call(gateway, "POST", f"/{rewritten.index}/_search", body)
        body["rescore"]["ttc"]["on_error"] = "fail"
        refused = call(gateway, "POST", f"/{rewritten.index}/_search", body)
    assert found.json()["ttc"]["applied"] is False
    assert "ES_TTC_LLM_URL" in found.json()["ttc"]["reason"]
    assert "ES_TTC_LLM_URL" in refused.reason

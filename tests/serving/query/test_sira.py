"""`{"query": {"ttc": {"method": "sira"}}}`: one native query, judged words, memory, deadline, fallback."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.serving.client import Reply, call
from tests.serving.query.conftest import Rewritten
from tests.support.gateway import gateway_to

ON_ONE_ENGINE = True


def sira(text: str, *, params: Mapping[str, Any] | None = None, **section: Any) -> dict[str, Any]:
    """Of eight documents, the default tau would let no word pass."""
    given = {"tau": 0.5, **(params or {})}
    return {"query": {"ttc": {"method": "sira", "query_text": text, "params": given, **section}}}


def scores(reply: Reply) -> dict[str, float]:
    return dict(zip(reply.ids, reply.scores, strict=True))


def plain(text: str) -> dict[str, Any]:
    fields = {"multi_match": {"query": text, "fields": ["title", "text"], "tie_breaker": 0.5}}
    return {"query": {"bool": {"should": [fields, {"match": {"ttc.enrichment": text}}]}}}


def test_documents_without_a_word_of_the_query_are_found(rewritten: Rewritten) -> None:
    rewritten.says("cardiac emergency", "heart attack", "infarction")
    found = rewritten.search(sira("cardiac emergency"))
    assert found.status == 200, found.body
    assert found.headers["x-ttc-applied"] == "true"
    assert set(found.ids) == {"1", "2"}
    told = found.json()["ttc"]
    assert told["method"] == "sira"
    assert told["applied"] is True
    assert "expansion" not in told
    assert set(rewritten.directly(plain("cardiac emergency")).ids) == {"2"}


def test_detail_shows_what_was_kept_and_left_out_and_why(rewritten: Rewritten) -> None:
    rewritten.says("blood clots", "thrombosis", "Clot", "rest", "zebra", "warfarin", "thrombosis.", "the")
    found = rewritten.search(sira("blood clots", detail=True))
    told = found.json()["ttc"]
    assert told["expansion"] == [
        {"term": "thrombosis", "weight": 1.0, "documents": 2},
        {"term": "warfarin", "weight": 1.0, "documents": 1},
    ]
    left_out = {one["term"]: one for one in told["left_out"]}
    assert left_out["Clot"]["why"] == "it stands in the text already"
    assert left_out["rest"] == {"term": "rest", "why": "too many documents have it", "documents": 5}
    assert left_out["zebra"] == {"term": "zebra", "why": "no document has it", "documents": 0}
    assert left_out["the"]["why"] == "the analyzer leaves nothing of it"
    assert told["documents"] == 8
    matched = {hit["_id"]: hit["_ttc"]["matched"] for hit in found.json()["hits"]["hits"] if "_ttc" in hit}
    assert matched == {"3": ["thrombosis"], "8": ["thrombosis", "warfarin"]}
    assert not any("matched_queries" in hit for hit in found.json()["hits"]["hits"])


def test_the_score_is_the_sum_of_both_parts(rewritten: Rewritten) -> None:
    rewritten.says("blood sum", "thrombosis", "warfarin")
    weight = 0.7
    whole = scores(rewritten.search(sira("blood sum", params={"weight": weight, "enrichment": 1})))
    own = scores(rewritten.directly(plain("blood sum")))
    terms = [
        {
            "bool": {
                "should": [
                    {"multi_match": {"query": term, "type": "phrase", "fields": ["title", "text"], "tie_breaker": 0.5}},
                    {"match_phrase": {"ttc.enrichment": term}},
                ]
            }
        }
        for term in ("thrombosis", "warfarin")
    ]
    expansion = scores(rewritten.directly({"query": {"bool": {"should": terms}}}))
    assert whole.keys() == own.keys() | expansion.keys()
    for document, score in whole.items():
        assert score == pytest.approx(own.get(document, 0) + weight * expansion.get(document, 0), rel=1e-5)


@pytest.mark.parametrize("params", [{"weight": 0}, {"tau": 0}])
def test_without_weight_or_words_it_is_the_plain_query(rewritten: Rewritten, params: dict[str, float]) -> None:
    rewritten.says("treated heart", "thrombosis", "rest")
    found = rewritten.search(sira("treated heart", params=params))
    assert scores(found) == scores(rewritten.directly(plain("treated heart")))
    assert found.json()["ttc"]["applied"] is True


def test_without_weight_the_model_is_not_asked(rewritten: Rewritten) -> None:
    rewritten.search(sira("nobody asks", params={"weight": 0}))
    assert rewritten.asked_about("nobody asks") == 0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I am sorry, but as a model I cannot help anybody with that.",
        '{"phrases": [',
        "[[[[[",
        '{"a": 1}',
        "\x00" * 50,
    ],
)
def test_an_answer_without_phrases_leaves_the_plain_query(rewritten: Rewritten, answer: str) -> None:
    text = f"treated heart {abs(hash(answer))}"
    rewritten.answers[text] = answer
    found = rewritten.search(sira(text, detail=True))
    assert found.json()["ttc"]["applied"] is True
    assert scores(found) == scores(rewritten.directly(plain(text)))


def test_a_warm_query_is_one_call_to_the_engine(rewritten: Rewritten) -> None:
    rewritten.says("warm query", "thrombosis")
    first = rewritten.search(sira("warm query"))
    rewritten.relay.passed.clear()
    again = rewritten.search(sira("warm query", params={"weight": 1.5}))
    assert [one.target.partition("?")[0] for one in rewritten.relay.passed] == [f"/{rewritten.index}/_search"]
    assert rewritten.asked_about("warm query") == 1
    assert (first.json()["ttc"]["cached"], again.json()["ttc"]["cached"]) == (False, True)
    assert again.json()["ttc"]["took"]["rewrite"] < 5


def test_frequencies_are_kept_for_their_caller_alone(rewritten: Rewritten) -> None:
    rewritten.says("whose documents", "thrombosis")
    rewritten.search(sira("whose documents"), authorization="Basic YTpi")
    rewritten.relay.passed.clear()
    again = rewritten.search(sira("whose documents"), authorization="Basic YTpi", **{"x-opaque-id": "another"})
    other = rewritten.search(sira("whose documents"), authorization="Basic Yzpk")
    assert again.json()["ttc"]["cached"] is True
    assert other.json()["ttc"]["cached"] is False
    assert rewritten.asked_about("whose documents") == 1  # the model knows of no document
    sent = {one.headers["authorization"] for one in rewritten.relay.passed if "_analyze" in one.target}
    assert sent == {"Basic Yzpk"}


def test_documents_that_an_alias_hides_are_not_counted(rewritten: Rewritten) -> None:
    alias = f"{rewritten.index}-alias"
    action = {"index": rewritten.index, "alias": alias, "filter": {"term": {"_id": "3"}}}
    call(rewritten.engine, "POST", "/_aliases", {"actions": [{"add": action}]})
    rewritten.says("hidden ones", "thrombosis", "warfarin", "infarction")
    told = rewritten.search(sira("hidden ones", detail=True, params={"tau": 1}), path=alias).json()["ttc"]
    assert [(one["term"], one["documents"]) for one in told["expansion"]] == [("thrombosis", 1)]
    assert told["documents"] == 1


def test_a_late_model_leaves_the_plain_query_and_answers_the_next(rewritten: Rewritten) -> None:
    def slowly() -> str:
        time.sleep(0.6)  # the scripted endpoint's own thread
        return '{"phrases": ["thrombosis"]}'

    rewritten.answers["late answer blood"] = slowly
    late = rewritten.search(sira("late answer blood", timeout="150ms"))
    assert late.headers["x-ttc-applied"] == "false"
    assert "took longer than its budget of 150 ms" in late.json()["ttc"]["reason"]
    assert scores(late) == scores(rewritten.directly(plain("late answer blood")))
    deadline = time.monotonic() + 5
    while not (again := rewritten.search(sira("late answer blood", timeout="150ms")).json()["ttc"])["applied"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert again["terms"] == 1
    assert rewritten.asked_about("late answer blood") == 1


def test_the_same_question_is_asked_once_at_a_time(rewritten: Rewritten) -> None:
    rewritten.says("asked together", "thrombosis")
    body = sira("asked together")
    answers = call(rewritten.gateway, "POST", "/_msearch", [{"index": rewritten.index}, body] * 6).json()
    assert [one["ttc"]["terms"] for one in answers["responses"]] == [1] * 6
    assert rewritten.asked_about("asked together") == 1


@pytest.mark.parametrize("fault", [500, 401, b"no json"])
def test_a_model_that_fails_leaves_the_plain_query(rewritten: Rewritten, fault: int | bytes) -> None:
    text = f"treated blood {fault!r}"
    rewritten.answers[text] = fault
    found = rewritten.search(sira(text))
    assert found.json()["ttc"]["applied"] is False
    assert "the model at" in found.json()["ttc"]["reason"]
    assert scores(found) == scores(rewritten.directly(plain(text)))
    failed = rewritten.search(sira(text, on_error="fail"))
    assert failed.status == 502
    rewritten.answers[text] = "{}"
    assert rewritten.search(sira(text)).json()["ttc"]["applied"] is True  # a failure is not remembered


def test_sira_inside_other_queries(rewritten: Rewritten) -> None:
    rewritten.says("combined blood", "thrombosis", "warfarin")
    body = {"query": {"bool": {"must": [sira("combined blood")["query"]], "filter": {"term": {"_id": "8"}}}}}
    found = rewritten.search(body | {"aggs": {"all": {"filters": {"filters": [{"match_all": {}}]}}}, "explain": True})
    assert found.ids == ["8"]
    assert found.json()["aggregations"]["all"]["buckets"][0]["doc_count"] == 1
    explained = found.json()["hits"]["hits"][0]["_explanation"]["value"]
    assert explained == pytest.approx(found.scores[0])


def test_a_rescorer_of_ours_gets_its_text(rewritten: Rewritten) -> None:
    rewritten.says("rescored blood", "thrombosis", "warfarin")
    body = sira("rescored blood", detail=True) | {"rescore": {"window_size": 10, "ttc": {"method": "dense"}}}
    found = rewritten.search(body)
    told = found.json()["ttc"]
    assert told["method"] == "dense"
    assert told["query"]["method"] == "sira"
    assert told["query"]["terms"] == 2


def test_items_of_an_msearch_answer_for_themselves(rewritten: Rewritten) -> None:
    rewritten.says("first item blood", "thrombosis")
    bodies = [sira("first item blood"), {"query": {"match_all": {}}}, sira("x", params={"tau": 2}), plain("rest")]
    lines = [line for body in bodies for line in ({}, body)]
    answer = call(rewritten.gateway, "POST", f"/{rewritten.index}/_msearch", lines).json()
    first, second, third, fourth = answer["responses"]
    assert first["ttc"]["terms"] == 1
    assert "ttc" not in second
    assert third["status"] == 400
    assert "tau" in third["error"]["reason"]
    assert len(fourth["hits"]["hits"]) == 5


def test_templates_may_hold_it(rewritten: Rewritten) -> None:
    if call(rewritten.engine, "POST", "/_render/template", {"source": {}}).status != 200:
        return  # the tests' Elasticsearch comes without its mustache module
    rewritten.says("templated blood", "thrombosis")
    source = '{"query": {"ttc": {"method": "sira", "query_text": "{{text}}", "params": {"tau": 0.5}}}}'
    body = {"source": source, "params": {"text": "templated blood"}}
    found = call(rewritten.gateway, "POST", f"/{rewritten.index}/_search/template", body)
    assert found.json()["ttc"]["terms"] == 1
    assert set(found.ids) == {"3", "8"}


def test_several_indices_are_searched_by_the_fields_named(rewritten: Rewritten) -> None:
    rewritten.says("many indices blood", "thrombosis")
    body = sira("many indices blood", params={"text_fields": ["title^2", "text"]})
    found = rewritten.search(body, path=f"{rewritten.index}*")
    assert found.json()["ttc"]["terms"] == 1
    assert set(found.ids) == {"3", "8"}


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"params": {"prompt": "clams"}}, "[claims]"),
        ({"params": {"prompt": "../../etc/passwd"}}, "parameter [prompt]"),
        ({"params": {"text_fields": ["titel"]}, "on_error": "fail"}, "[params.text_fields]"),
        ({"params": {"text_fields": ["title^"]}}, "parameter [text_fields]"),
    ],
)
def test_sira_with_an_invalid_query_is_refused(rewritten: Rewritten, section: dict[str, Any], reason: str) -> None:
    found = rewritten.search({"query": {"ttc": {"method": "sira", "query_text": "a new text", **section}}})
    assert found.status == 400
    assert reason in found.reason


def test_an_index_that_is_not_ours(rewritten: Rewritten, index_name: str) -> None:
    call(rewritten.engine, "PUT", f"/{index_name}/_doc/1?refresh=true", {"body": "Thrombosis of an artery"})
    rewritten.says("foreign clots", "thrombosis")
    unnamed = rewritten.search(sira("artery"), path=index_name)
    assert (unnamed.status, unnamed.ids, unnamed.json()["ttc"]["applied"]) == (200, ["1"], False)
    assert "name them in [params.text_fields]" in unnamed.json()["ttc"]["reason"]
    empty = rewritten.search(sira(" ", params={"text_fields": ["body"]}), path=index_name)
    assert (empty.status, empty.json()["ttc"]["applied"]) == (200, False)
    named = rewritten.search(sira("foreign clots", params={"text_fields": ["body"], "tau": 1}), path=index_name)
    assert named.ids == ["1"]
    wanted = rewritten.search(sira("artery", params={"text_fields": ["body"], "enrichment": 2}), path=index_name)
    assert (wanted.status, wanted.ids, wanted.json()["ttc"]["applied"]) == (200, ["1"], False)
    assert f"es-ttc index enrichment {index_name}" in wanted.json()["ttc"]["reason"]


def test_an_index_that_is_not_there_is_the_engines_own_error(rewritten: Rewritten) -> None:
    missing = rewritten.search(sira("blood"), path="no-such-index")
    assert missing.status == 404
    assert missing.json()["error"]["type"] == "index_not_found_exception"


def test_without_a_model_it_says_what_to_set(rewritten: Rewritten) -> None:
    with gateway_to(rewritten.engine, llm_url=None) as gateway:
        found = call(gateway, "POST", f"/{rewritten.index}/_search", sira("blood"))
        assert (found.status, found.json()["ttc"]["applied"]) == (200, False)
        assert "start it with ES_TTC_LLM_URL" in found.json()["ttc"]["reason"]
        feedback = {"query": {"ttc": {"method": "rm3", "query_text": "aspirin", "params": {"tau": 0.5}}}}
        expanded = call(gateway, "POST", f"/{rewritten.index}/_search", feedback)
        assert expanded.json()["ttc"]["terms"] > 0
        assert expanded.ids[0] == "1"


@pytest.mark.llm
def test_a_real_model_is_asked(rewritten: Rewritten, llm_url: str) -> None:
    with gateway_to(rewritten.engine, llm_url=llm_url, llm_api="completions") as gateway:
        body = sira("why does my heart race", detail=True, params={"tau": 1, "phrases": 3})
        told = call(gateway, "POST", f"/{rewritten.index}/_search", body).json()["ttc"]
    assert told["applied"] is True
    assert told["expansion"] or told["left_out"]

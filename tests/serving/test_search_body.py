"""A search body taken apart: what goes to the engine, which ranks are wanted, what is refused."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest, MissingText, SeveralTexts
from es_ttc.serving.plan.plan import SearchPlan, plan_search
from es_ttc.serving.request.request import url_params

NATIVE = {"window_size": 50, "query": {"rescore_query": {"match": {"text": "b"}}}}
GUARD: dict[str, Any] = {"match_none": {}}


def body(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"query": {"match": {"text": "cats"}}, "rescore": {"ttc": {"method": "spectral"}}}
    return base | changes


def plan(request: dict[str, Any], url: str = "", max_window: int = 1000) -> SearchPlan:
    planned = plan_search(request, url_params(url), max_window=max_window)
    assert planned is not None
    return planned


def test_a_body_without_a_section_of_ours_is_left_alone() -> None:
    for rescore in (None, NATIVE, [NATIVE], [], "ttc", ["ttc"]):
        assert plan_search({"rescore": rescore}, [], max_window=1000) is None


def test_the_engine_is_asked_for_the_whole_window_and_everything_else_stays() -> None:
    request = body(aggs={"a": {"terms": {"field": "f"}}}, highlight={"fields": {"text": {}}}, size=5, min_score=0.5)
    before = copy.deepcopy(request)
    planned = plan(request)
    assert request == before
    assert planned.body["from"] == 0
    assert planned.body["size"] == 100
    for key in ("query", "aggs", "highlight", "min_score"):
        assert planned.body[key] == request[key]
    assert planned.body["docvalue_fields"] == ["ttc.hash", "ttc.encoder", "_seq_no"]
    assert planned.hidden == ("ttc.hash", "ttc.encoder", "_seq_no")
    assert planned.texts == ("cats",)


def test_native_rescorers_stay_before_a_stand_in_that_makes_the_engine_apply_its_rules() -> None:
    planned = plan(body(rescore=[NATIVE, {"window_size": 20, "ttc": {"method": "spectral"}}], size=30))
    assert planned.body["rescore"] == [NATIVE, {"window_size": 20, "query": {"rescore_query": GUARD}}]
    assert planned.body["size"] == 30


@given(st.integers(1, 120), st.integers(0, 120), st.integers(1, 120))
def test_every_page_has_the_same_window(size: int, number: int, window: int) -> None:
    start = number * size
    page = plan(body(**{"from": start, "size": size, "rescore": {"window_size": window, "ttc": {"method": "a"}}})).page
    assert (page.window, page.fetch) == (window, max(window, start + size))


def test_url_parameters_win_and_ours_do_not_reach_the_engine() -> None:
    planned = plan(body(size=3), "from=20&size=10&routing=a&explain=true&timeout=2s")
    assert (planned.page.start, planned.page.size) == (20, 10)
    assert planned.params == [("routing", "a"), ("explain", "true"), ("timeout", "2s")]
    assert planned.explain
    assert planned.timeout_ms == 2000


def test_no_hits_asked_for_needs_no_first_pass_hits() -> None:
    planned = plan(body(size=0))
    assert planned.page.fetch == 0
    assert planned.body["size"] == 0


@pytest.mark.parametrize(
    ("changes", "url", "hidden"),
    [
        ({"docvalue_fields": ["ttc.hash", "f"]}, "", ("ttc.encoder", "_seq_no")),
        ({"docvalue_fields": [{"field": "ttc.*"}]}, "", ("_seq_no",)),
        ({"docvalue_fields": ["ttc.*", "_seq_no"]}, "", ()),
        ({"fields": ["ttc.encoder"]}, "", ("ttc.hash", "_seq_no")),
        ({}, "docvalue_fields=ttc.hash,ttc.encoder", ("_seq_no",)),
    ],
)
def test_doc_values_that_the_caller_asked_for_stay_in_his_answer(
    changes: dict[str, Any], url: str, hidden: tuple[str, ...]
) -> None:
    assert plan(body(**changes), url).hidden == hidden


def test_hits_without_stored_fields_keep_their_ids_until_the_end() -> None:
    for more in ({}, {"_source": False}, {"version": True}):
        planned = plan(body(stored_fields="_none_", **more))
        assert planned.hide_ids
        assert "stored_fields" not in planned.body
        assert planned.body["_source"] is False
    assert plan(body(), "stored_fields=_none_").params == []


def test_a_collapsed_search_asks_for_the_documents_of_one_window() -> None:
    planned = plan(body(collapse={"field": "f"}, **{"from": 300, "size": 20}))
    assert "collapse" not in planned.body
    assert planned.body["size"] == 100
    assert planned.body["docvalue_fields"] == ["ttc.hash", "ttc.encoder", "_seq_no", "f"]
    assert planned.hidden == ("ttc.hash", "ttc.encoder", "_seq_no")
    for fields, url in (([{"field": "f", "format": "x"}], ""), (["f*"], ""), ([], "docvalue_fields=f")):
        asked = plan(body(collapse={"field": "f"}, docvalue_fields=fields), url)
        assert len(asked.body["docvalue_fields"]) == 4
        assert "docvalue_fields" not in dict(asked.params)


def test_a_native_rescorer_bounds_the_window_of_a_section_after_it() -> None:
    ours = {"ttc": {"method": "spectral", "query_text": "x"}}
    collapsed = plan(body(collapse={"field": "f"}, rescore=[NATIVE, ours]))
    assert collapsed.body["rescore"][0] == NATIVE
    assert collapsed.plain["rescore"] == [NATIVE]
    with pytest.raises(InvalidRequest, match=r"\[rescore.window_size\]"):
        plan(body(collapse={"field": "f"}, rescore=[NATIVE | {"window_size": "50"}, ours | {"window_size": 20}]))
    learned = {"window_size": "50", "learning_to_rank": {"model_id": "m"}}  # engines read numbers in text too
    for windows in ({}, {"window_size": "200"}):
        bound = plan(body(rescore=[NATIVE | {"window_size": 200}, learned, ours | windows]))
        assert (bound.page.window, bound.page.fetch, bound.body["size"]) == (50, 50, 50)
    assert bound.body["rescore"][-1]["window_size"] == 50
    assert plan(body(rescore=[learned, ours | {"window_size": 20}])).body["size"] == 20


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"match": {"title": "cats"}}, "cats"),
        ({"match_phrase": {"title": {"query": "cats"}}}, "cats"),
        ({"multi_match": {"query": "cats", "fields": ["a", "b"]}}, "cats"),
        ({"query_string": {"query": "cats"}}, "cats"),
        ({"simple_query_string": {"query": "cats"}}, "cats"),
        ({"combined_fields": {"query": "cats", "fields": ["a"]}}, "cats"),
        ({"neural": {"v": {"query_text": "cats", "k": 3}}}, "cats"),
        ({"more_like_this": {"fields": ["a"], "like": "cats"}}, "cats"),
        ({"bool": {"must": {"match": {"a": "cats"}}, "filter": {"match": {"b": "dogs"}}}}, "cats"),
        ({"bool": {"should": [{"match": {"a": "cats"}}, {"match": {"b": "cats"}}]}}, "cats"),
        ({"function_score": {"query": {"match": {"a": "cats"}}}}, "cats"),
        ({"dis_max": {"queries": [{"match": {"a": "cats"}}, {"term": {"b": "x"}}]}}, "cats"),
        ({"nested": {"path": "p", "query": {"match": {"p.a": "cats"}}}}, "cats"),
    ],
)
def test_the_querys_own_text_is_used(query: dict[str, Any], text: str) -> None:
    assert plan(body(query=query)).texts == (text,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": {"match_all": {}}}, "no text of its own"),
        ({"query": None}, "no text of its own"),
        ({"query": {"bool": {"must": [{"match": {"a": "x"}}, {"match": {"a": "y"}}]}}}, "2 different texts"),
    ],
)
def test_without_exactly_one_text_the_section_must_give_it(changes: dict[str, Any], words: str) -> None:
    problem = plan(body(**changes)).problem
    assert isinstance(problem, MissingText)
    assert words in str(problem)
    assert "[ttc.query_text]" in str(problem)
    given_text = {"ttc": {"method": "a", "query_text": "cats"}}
    assert plan(body(**changes, rescore=given_text)).texts == ("cats",)


def test_texts_in_fields_without_text_do_not_count() -> None:
    brand = {"multi_match": {"query": "acme", "fields": ["brand^2", "maker"]}}
    neural = {"neural": {"vector": {"query_text": "cats"}}}
    must = [{"match": {"tenant": "acme corp"}}, {"match": {"a": "cats"}}, neural, brand]
    request = body(query={"bool": {"must": must}})
    problem = plan(request).problem
    assert isinstance(problem, SeveralTexts)
    assert problem.fields == {"tenant", "a", "brand", "maker"}
    known = plan_search(request, [], max_window=1000, not_text={"tenant", "brand", "maker"})
    assert known is not None
    assert known.texts == ("cats",)
    partly = plan_search(request, [], max_window=1000, not_text={"tenant", "brand"})
    assert partly is not None
    assert "2 different texts" in str(partly.problem)


def test_the_text_may_stand_in_the_url() -> None:
    assert plan(body(query=None), "q=cats").texts == ("cats",)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.text(max_size=5) | st.just({"method": "a"}),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ttc", "query", "match", "bool", "must", "window_size"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["query", "from", "size", "collapse", "sort", "fields", "docvalue_fields", "stored_fields", "timeout"]
        ),
        values,
    ),
    values,
)
def test_a_malformed_request_is_planned_or_refused_and_nothing_else(changes: dict[str, Any], rescore: Any) -> None:
    for request in (changes | {"rescore": rescore}, body(**changes)):
        with contextlib.suppress(InvalidRequest):
            plan_search(request, [], max_window=1000)

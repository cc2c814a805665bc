"""The ttc section: what it takes and what it refuses; tests/golden has the wording."""

import contextlib
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.rescorers import registry
from es_ttc.serving.request.section import ScoreMode, milliseconds, parse_section
from tests.serving.client import search
from tests.serving.conftest import SearchStack

ON_ONE_ENGINE = True

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "method",
    "query_text",
    "query_texts",
    "parts",
    "params",
    "timeout",
    "on_error",
    "detail",
    "score_mode",
    "query_weight",
    "rescore_query_weight",
    "passages",
    "context",
    "metod",
)


def test_a_section_with_everything() -> None:
    section = parse_section(
        {
            "method": "spectral",
            "query_texts": ["as a buyer", "as a seller"],
            "params": {"scales": [1, 3]},
            "timeout": "1.5s",
            "on_error": "fail",
            "detail": True,
            "score_mode": "total",
            "query_weight": 2,
            "rescore_query_weight": 0.5,
        }
    )
    assert section.query_texts == ("as a buyer", "as a seller")
    assert section.timeout_ms == 1500
    assert section.score_mode is ScoreMode.TOTAL
    assert section.query_weight == 2.0


@given(json_values)
def test_anything_else_is_refused_in_words(data: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_section(data)


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=5))
def test_a_section_is_taken_or_refused_and_nothing_else(data: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        section = parse_section({"method": "spectral", **data})
        assert section.method
        assert section.timeout_ms is None or section.timeout_ms > 0


def test_deep_params_are_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        parse_section({"method": "spectral", "params": {"x": deep}})


@pytest.mark.parametrize(
    ("time", "expected"), [("200ms", 200), ("1s", 1000), ("2m", 120_000), ("500micros", 0.5), ("1.5h", 5.4e6)]
)
def test_times_are_the_engines(time: str, expected: float) -> None:
    assert milliseconds(time) == pytest.approx(expected)


@pytest.mark.parametrize(
    "section",
    [{"query_weight": math.nan}, {"query_text": "\ud800"}, {"params": {"n": 2**70}}],
)
def test_values_that_no_json_of_an_engine_has_are_refused_in_a_section(section: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"\[ttc"):
        parse_section({"method": "spectral", **section})


@pytest.mark.parametrize(
    ("method", "raw", "words"),
    [
        ("spectral", {"scales": [math.nan]}, "a scale is a number"),
        ("spectral", {"aggregation": "top_mean", "top_m": 2**70}, "are not JSON"),
        ("spectral", {"roles": {1, 2}}, "are not JSON"),
        ("spectral", None, "object"),
        ("blend", {"signals": {"lexical": math.inf}}, "must be a number"),
    ],
)
def test_values_that_no_json_of_an_engine_has_are_refused_in_parameters(method: str, raw: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        registry.parse_params(registry.load(method), raw)


def test_a_language_model_that_is_not_configured_leaves_the_first_pass(stack: SearchStack) -> None:
    ours = {"method": "rr", "params": {"reranker": "llm"}}
    body = {"query": {"match": {"text": "cat"}}, "rescore": {"ttc": ours}}
    reply = search(stack.gateway, stack.index, body)
    assert reply.ids == search(stack.engine, stack.index, {"query": body["query"]}).ids
    assert reply.json()["ttc"]["applied"] is False
    assert "ES_TTC_LLM_URL" in reply.json()["ttc"]["reason"]
    ours["on_error"] = "fail"
    assert "ES_TTC_LLM_URL" in search(stack.gateway, stack.index, body).reason

"""The ttc section: what it takes, and one sentence for whatever it does not."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.serving.request.section import ScoreMode, milliseconds, parse_section

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KEYS = (
    "method",
    "query_text",
    "query_texts",
    "params",
    "timeout",
    "on_error",
    "detail",
    "score_mode",
    "query_weight",
    "rescore_query_weight",
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

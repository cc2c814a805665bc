from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.common.validation import did_you_mean, nearest, shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        ("fast", '"fast"'),
        ("ไทย", '"ไทย"'),
        ("a\nb\x85c\u2028d\ud800", '"a\\nb\\x85c\\u2028d\\ud800"'),
        ({"a": [1, 0.5]}, '{"a": [1, 0.5]}'),
        ({1, 2}, '"{1, 2}"'),
    ],
)
def test_values_are_shown_as_json_on_one_line(value: Any, expected: str) -> None:
    assert shown(value) == expected


def test_what_python_cannot_write_is_not_shown() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    assert shown(deep) == shown(10**5000) == "a value too deep or too long to be shown"


@given(st.text())
def test_what_is_shown_can_be_printed(text: str) -> None:
    assert shown(text).isprintable()
    assert shown("x" * 100 + text) == '"' + "x" * 76 + "..."


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("Spectrl", ["spectral", "dense"]) == "spectral"
    assert nearest("retrievalmethod", ["retrievalMethod"]) == "retrievalMethod"
    assert nearest("zzz", ["spectral", "dense"]) is None
    assert did_you_mean("zzz", ["b", "a"]) == ": valid are [a], [b]"
    assert did_you_mean("zzz", []) == ": there are none"

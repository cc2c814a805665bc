from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from es_ttc.common.validation import Fault, did_you_mean, nearest, read_json, shown, validated
from es_ttc.errors import InvalidRequest


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


def test_shown_replaces_values_too_deep_or_too_long() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    assert shown(deep) == shown(10**5000) == "a value too deep or too long to be shown"


class _Part(BaseModel, extra="forbid"):
    text: str = ""


class _Model(BaseModel, extra="forbid"):
    n: int = Field(1, ge=1, le=9)
    x: float = Field(1.0, gt=0)
    names: tuple[str, ...] = Field(("a",), min_length=1)
    flag: bool = True
    table: dict[str, int] = {}
    kind: Literal["a", "b"] = "a"
    parts: tuple[str | _Part, ...] = ()


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("n", "x", "must be an integer"),
        ("n", 0, "must be 1 or more"),
        ("n", 10, "must be at most 9"),
        ("x", 0, "must be more than 0"),
        ("names", [], "must have at least 1 item, not 0"),
        ("names", 5, "must be a list"),
        ("flag", 5, "must be true or false"),
        ("table", [], "must be an object"),
        ("kind", "c", "must be 'a' or 'b'"),
    ],
)
def test_problems_are_told_in_plain_words(field: str, value: Any, problem: str) -> None:
    with pytest.raises(Fault) as raised:
        read_json(_Model, {field: value})
    assert raised.value.problem == problem


def test_an_unknown_key_inside_a_list_is_named() -> None:
    with pytest.raises(InvalidRequest) as raised:
        validated(_Model, {"parts": [{"title": "x"}]}, "body")
    assert str(raised.value) == "[body.parts] unknown field [title]"


@given(st.text())
def test_shown_is_printable_and_cut(text: str) -> None:
    assert shown(text).isprintable()
    assert shown("x" * 100 + text) == '"' + "x" * 76 + "..."


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert nearest("Spectrl", ["spectral", "dense"]) == "spectral"
    assert nearest("retrievalmethod", ["retrievalMethod"]) == "retrievalMethod"
    assert nearest("zzz", ["spectral", "dense"]) is None
    assert did_you_mean("zzz", ["b", "a"]) == ": valid are [a], [b]"
    assert did_you_mean("zzz", ["a", "c", "b"], ("c",)) == ": valid are [c], [a], [b]"
    assert did_you_mean("zzz", []) == ": there are none"

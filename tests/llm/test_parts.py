"""The client's smaller parts: the breaker's clock, prompts, JSON among prose."""

from pathlib import Path

import pytest

from es_ttc.errors import ConfigurationError
from es_ttc.llm.endpoint import CircuitBreaker
from es_ttc.llm.prompts import Prompt, checked_prompt, first_json, read_prompt


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_breaker_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(2, 10, Clock())
    for _ in range(3):
        breaker.failed()
        breaker.succeeded()
    assert breaker.enter()
    breaker.failed()
    breaker.failed()
    assert not breaker.enter()


def test_one_trial_at_a_time_and_longer_pauses() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10, clock)
    breaker.failed()
    assert breaker.seconds_left == 10
    clock.seconds = 10
    assert breaker.enter()
    assert not breaker.enter()  # the trial is under way
    breaker.failed()
    assert breaker.seconds_left == 20
    clock.seconds = 30
    assert breaker.enter()
    breaker.succeeded()
    assert breaker.enter()
    breaker.failed()
    assert breaker.seconds_left == 10


def test_calls_under_way_when_it_opened_do_not_prolong_it() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10, clock)
    breaker.failed()
    clock.seconds = 9
    breaker.failed()
    assert breaker.seconds_left == 1


def test_a_trial_that_is_never_told_of_does_not_close_it_for_good() -> None:
    clock = Clock()
    breaker = CircuitBreaker(1, 10, clock)
    breaker.failed()
    clock.seconds = 10
    assert breaker.enter()
    clock.seconds = 20
    assert breaker.enter()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure! ```json\n{"a": ["b"]}\n``` Anything else?', {"a": ["b"]}),
        ('I think {this} is it: ["x"]', ["x"]),
        ('{"a": 1} {"b": 2}', {"a": 1}),
        ('{"a": [1, 2', None),
        ("no json", None),
        ("", None),
        ("[" * 5000, None),
    ],
)
def test_json_is_found_among_prose(text: str, value: object) -> None:
    assert first_json(text) == value


def test_a_prompts_values_are_never_read_as_placeholders() -> None:
    prompt = checked_prompt("p", "Query: {{query}}\nDocument: {{document}}", {"query", "document"})
    assert prompt.render(query="{{document}}", document="\\1 {x}") == "Query: {{document}}\nDocument: \\1 {x}"


def test_another_wording_is_another_version() -> None:
    assert Prompt("a", "x").version == Prompt("b", "x").version != Prompt("a", "y").version


@pytest.mark.parametrize(
    ("text", "problem"),
    [("nothing", "write {{query}} where it belongs"), ("{{query}} {{doc}}", "unknown placeholder {{doc}}: known are")],
)
def test_a_prompt_file_with_wrong_placeholders_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        read_prompt(path, {"query"})


def test_a_prompt_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_prompt(tmp_path / "missing.txt", {"query"})

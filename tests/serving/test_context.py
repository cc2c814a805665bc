"""Passages with context: pure, from the fields of a document."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.serving.rescore.context import in_context

HAN = "雨の日に使う傘です。"
THAI = "".join(map(chr, [*range(0x0E01, 0x0E2F), *range(0x1000, 0x1020), *range(0x1780, 0x17A2)]))  # and its neighbours


def passage(start: int, end: int, score: float = 0.5, field: str = "text") -> dict[str, Any]:
    return {"field": field, "start": start, "end": end, "score": score}


@pytest.mark.parametrize(
    ("value", "match", "words", "expected"),
    [
        ("The cat drinks milk (and wa\u0301ter), daily.", "drink", 1, "cat drinks milk"),
        ("The cat drinks milk (and wa\u0301ter), daily.", "milk", 2, "cat drinks milk (and wa\u0301ter),"),
        ("The cat drinks milk (and wa\u0301ter), daily.", "milk", 9, "The cat drinks milk (and wa\u0301ter), daily."),
        ("The cat drinks milk.", "s m", 0, "drinks milk."),
        (["The cat", "drinks milk", "daily"], "milk", 1, "drinks milk daily"),
        ("<p>The cat<br/>drinks <a href='a b c'>milk</a> da&iacute;ly</p>", "milk", 1,
         "drinks <a href='a b c'>milk</a> da&iacute;ly"),
        ("<p>The cat<br/>drinks <a href='a b c'>milk</a></p>", "drinks", 1, "cat<br/>drinks <a href='a b c'>milk"),
        (HAN, "使う", 2, "日に使う傘で"),
        (THAI, THAI[55:60], 1, THAI[50:65]),
        ("x" * 100 + " milk " + "x" * 100, "milk", 1, "x" * 40 + " milk " + "x" * 40),
    ],
)  # fmt: skip
def test_a_passage_is_widened_by_words(value: Any, match: str, words: int, expected: str) -> None:
    text = value if isinstance(value, str) else " ".join(value)
    start = text.index(match)
    [shown] = in_context([passage(start, start + len(match))], {"text": value}, words)
    assert shown == {
        **passage(text.index(expected), text.index(expected) + len(expected)),
        "length": len(text),
        "text": expected,
    }


def test_passages_that_meet_are_joined_and_the_best_is_first() -> None:
    text = " ".join(f"w{number:02}" for number in range(40))
    far, second, first = passage(120, 123, 0.7), passage(20, 23, 0.6), passage(0, 3, 0.8)
    shown = in_context([first, far, second], {"text": text}, 2)
    assert [(one["score"], one["text"]) for one in shown] == [
        (0.8, "w00 w01 w02 w03 w04 w05 w06 w07"),
        (0.7, "w28 w29 w30 w31 w32"),
    ]
    assert len(in_context([first, second], {"text": text}, 1)) == 2
    assert len(in_context([passage(0, 3), passage(0, 3, field="title")], {"text": text, "title": text}, 9)) == 2


def test_a_passage_without_its_text_stays_a_position() -> None:
    shown = [passage(0, 3, 0.8, "hidden"), passage(4, 8, 0.7)]
    assert in_context(shown, {"text": "shorter"}, 5) == shown


@given(st.text("ab\u0301 .<>&;雨ก", max_size=60), st.integers(0, 9), st.data())
def test_context_is_a_part_of_the_text_around_the_passage(text: str, words: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    [shown] = in_context([passage(start, end)], {"text": text}, words)
    assert shown["text"] == text[shown["start"] : shown["end"]]
    assert 0 <= shown["start"] <= start <= end <= shown["end"] <= shown["length"] == len(text)

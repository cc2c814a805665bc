import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.enrichment.proposals.parsing import MAX_PROPOSALS, proposals

WANTED = ["heart attack", "MI", "cardiac arrest"]


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(WANTED),
        json.dumps({"phrases": WANTED}),
        f"Sure! Here they are:\n```json\n{json.dumps({'phrases': WANTED}, indent=2)}\n```\nAnything else?",
        '{"phrases": ["heart attack", "MI", "cardiac arrest", "myocard',
        '```json\n{"phrases": ["heart attack", "MI", "cardiac arrest",]}',
        '{"synonyms": ["heart attack", "MI"], "other": [{"name": "cardiac arrest"}]}',
        "heart attack, MI, cardiac arrest",
        "heart attack; MI; cardiac arrest\n",
        "Keywords: heart attack, MI, cardiac arrest",
        "Here are the terms:\nheart attack\nMI\n\ncardiac arrest",
        '<think>What about stroke? ["stroke"]</think> heart attack, MI, MI, cardiac arrest',
        "heart attack, ---, MI, cardiac arrest, 。",
    ],
)
def test_answers_of_all_kinds_are_read(answer: str) -> None:
    assert proposals(answer) == WANTED


@pytest.mark.parametrize(
    "answer", ["", "   \n", "[]", "{}", '{"phrases": []}', "... --- !!", "<think>on and on", "null"]
)
def test_an_answer_without_proposals_gives_none(answer: str) -> None:
    assert proposals(answer) in ([], ["null"])


@given(st.text(max_size=400))
def test_whatever_a_model_writes_is_read_without_complaint(answer: str) -> None:
    found = proposals(answer)
    assert all(found)
    assert len(found) == len(set(found)) <= MAX_PROPOSALS


def test_a_model_that_has_lost_its_way_is_cut_off() -> None:
    assert len(proposals(",".join(f"term {n}" for n in range(1000)))) == MAX_PROPOSALS
    assert proposals("word " * 500) == []
    assert proposals("[" * 100_000) == []

"""Retrieval programs in answers: weights, alternatives and exclusions, all optional and bounded."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rewriters.program import Proposed, RetrievalProgram, retrieval_program


@pytest.mark.parametrize(
    ("answer", "phrases", "excluded"),
    [
        ('{"phrases": ["a b", "c"]}', ["a b", "c"], ()),
        ("a b, c^2", ["a b", Proposed(("c",), 2.0)], ()),
        ('["a", {"phrase": "b", "weight": 0.5}]', ["a", Proposed(("b",), 0.5)], ()),
        ('{"phrases": [{"any": ["a", "b"], "weight": 99}], "exclude": ["x"]}', [Proposed(("a", "b"), 3.0)], ("x",)),
        ('{"phrases": [{"term": "a", "weight": "much"}, {"any": 3}, 7, null]}', ["a"], ()),
        ('<think>{"phrases": ["x"]}</think>{"phrases": [{"any": ["a"], "weight": -1}]}', [Proposed(("a",), 0.1)], ()),
        ('{"phrases": [{"any": ["a"]}], "exclude": "x"}', ["a"], ()),
        ('{"phrases": ["a", "b"], "exclude": ["x", "y', ["a", "b"], ()),
        ("", [], ()),
    ],
)
def test_answers_are_read(answer: str, phrases: Sequence[str | Proposed], excluded: tuple[str, ...]) -> None:
    expected = tuple(Proposed((one,)) if isinstance(one, str) else one for one in phrases)
    assert retrieval_program(answer) == RetrievalProgram(expected, excluded)


@given(st.recursive(st.none() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["phrases", "any", "weight", "exclude", "phrase"]), inner)), st.text())  # fmt: skip
def test_program_of_any_text_parses_with_bounded_weights(value: object, text: str) -> None:
    for answer in (json.dumps(value), json.dumps(value)[:-3], text):
        read = retrieval_program(answer)
        assert all(0.1 <= one.weight <= 3 and 1 <= len(one.alternatives) <= 5 for one in read.phrases)
        assert len(read.excluded) <= 5

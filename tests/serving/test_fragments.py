"""Fragments of `highlight` with type `ttc`: pure, from the values of a field and its passages."""

from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral.passages import BestPassage
from es_ttc.serving.plan.highlights import Highlight

HIGHLIGHT = Highlight("text", 5, False, ("<", ">"), False)
VALUES = st.lists(st.text("ab\u0301 ", min_size=1).filter(str.strip), min_size=1, max_size=4)


def test_a_fragment_does_not_cross_the_values_of_a_list() -> None:
    values = ["red shoes", "blue suede hats", "green"]
    crossing = BestPassage(0, 4, 20, 0.9, (10, 14))
    assert HIGHLIGHT.fragments(values, [crossing]) == ["<blue> suede"]
    match_too = BestPassage(0, 0, 24, 0.9, (4, 14))
    assert HIGHLIGHT.fragments(values, [match_too]) == ["red <shoes>"]


@given(VALUES, st.data())
def test_a_fragment_is_a_part_of_one_value(values: list[str], data: st.DataObject) -> None:
    joined = " ".join(values)
    places = st.integers(0, len(joined) - 1).filter(lambda place: joined[place] != " ")
    first = data.draw(places)
    last = data.draw(st.integers(first + 1, len(joined)))
    passage = BestPassage(
        0, data.draw(st.integers(0, first)), data.draw(st.integers(last, len(joined))), 0.5, (first, last)
    )
    [fragment] = HIGHLIGHT.fragments(values, [passage])
    text = fragment.replace("<", "").replace(">", "")
    assert any(text in value for value in values)
    assert fragment.count("<") == fragment.count(">") == 1

"""Pages: combining as the engines do, one window on every page, scores that never rise."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_ttc.serving.request.section import ScoreMode
from es_ttc.serving.rescore.page import explained, without_guard
from es_ttc.serving.rescore.ranking import below, combine, rank

scores = st.floats(0, 1e6, width=32)


@st.composite
def first_passes(draw: st.DrawFn) -> tuple[Any, Any, Any, int]:
    """A first pass, final scores, which documents have one, and where the window ends."""
    length = draw(st.integers(0, 60))
    first = np.sort(draw(hnp.arrays(np.float32, length, elements=scores)))[::-1]
    final = draw(hnp.arrays(np.float32, length, elements=scores))
    window = draw(st.integers(1, 25))
    mask = draw(hnp.arrays(np.bool_, length)) & (np.arange(length) < window)
    return first, final, mask, window


@given(first_passes())
def test_a_ranking_is_a_permutation_whose_scores_never_rise(case: tuple[Any, Any, Any, int]) -> None:
    ranking = rank(*case[:3])
    assert sorted(ranking.order.tolist()) == list(range(len(case[0])))
    assert (np.diff(ranking.scores) <= 0).all()
    assert (ranking.scores >= 0).all()
    assert np.isfinite(ranking.scores).all()


@given(first_passes())
def test_scored_documents_come_first_by_their_scores_and_the_others_keep_their_order(
    case: tuple[Any, Any, Any, int],
) -> None:
    _, final, mask, _ = case
    ranking = rank(*case[:3])
    count = int(mask.sum())
    scored, others = ranking.order[:count], ranking.order[count:]
    assert set(scored.tolist()) == set(np.flatnonzero(mask).tolist())
    assert scored.tolist() == sorted(scored.tolist(), key=lambda place: (-final[place], place))
    assert ranking.scores[:count].tolist() == final[scored].tolist()
    assert others.tolist() == sorted(others.tolist())


@given(first_passes(), st.integers(1, 25))
def test_pages_of_any_size_hold_every_document_once(case: tuple[Any, Any, Any, int], size: int) -> None:
    first, final, mask, window = case
    whole = rank(first, final, mask)
    seen: list[int] = []
    shown: list[float] = []
    for start in range(0, len(first), size):
        end = max(window, start + size)  # so many are requested
        page = rank(first[:end], final[:end], mask[:end])
        seen += page.order[start : start + size].tolist()
        shown += page.scores[start : start + size].tolist()
    assert seen == whole.order.tolist()
    assert shown == whole.scores.tolist()


def test_a_run_that_would_overtake_is_scaled_as_a_whole() -> None:
    assert below(np.array([8, 4, 2], np.float32), np.float32(2)).tolist() == [2, 1, 0.5]
    assert below(np.array([1, 0.5], np.float32), np.float32(2)).tolist() == [1, 0.5]
    assert below(np.array([3, 1], np.float32), np.float32(0)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (ScoreMode.REPLACE, 6.0),
        (ScoreMode.TOTAL, 7.0),
        (ScoreMode.MULTIPLY, 6.0),
        (ScoreMode.AVG, 3.5),
        (ScoreMode.MAX, 6.0),
        (ScoreMode.MIN, 1.0),
    ],
)
def test_weights_count_before_the_scores_are_combined(mode: ScoreMode, expected: float) -> None:
    first, rescored = np.array([2.0], np.float32), np.array([3.0], np.float32)
    combined = combine(mode, first, rescored, query_weight=0.5, rescore_query_weight=2.0)
    assert combined.dtype == np.float32
    assert combined.tolist() == [expected]


@given(st.sampled_from(ScoreMode), scores, scores, st.floats(0, 1e9), st.floats(0, 1e9))
def test_combined_scores_are_finite_and_not_negative(
    mode: ScoreMode, first: float, rescored: float, weight: float, rescore_weight: float
) -> None:
    combined = combine(
        mode,
        np.array([first], np.float32),
        np.array([rescored], np.float32),
        query_weight=weight,
        rescore_query_weight=rescore_weight,
    )
    assert np.isfinite(combined).all()
    assert (combined >= 0).all()


def test_an_explanation_holds_the_engines_own_without_our_stand_in() -> None:
    own = {"value": 2.0, "description": "weight(text:a in 1)", "details": []}
    factor = {"value": 1.0, "description": "primaryWeight", "details": []}
    engine = {"value": 2.0, "description": "product of:", "details": [own, factor]}
    node = explained(0.75, "spectral", ScoreMode.REPLACE, 0.75, engine)
    assert node["value"] == 0.75
    assert node["details"][1] == own
    assert without_guard(own) == own
    assert explained(0.1, "spectral", ScoreMode.REPLACE, None, engine)["details"] == [own]

"""The best of many scores, fusion, and reordering of a window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.lab.evaluation.rankings import Ranking, depth_of, fuse_rankings, reorder, top


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 50))
def test_top_is_the_beginning_of_a_stable_sort(values: list[int], depth: int) -> None:
    scores = np.array(values, dtype=np.float32)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:depth]
    found = top(scores, depth)
    assert found.documents.tolist() == expected
    assert found.scores.tolist() == [values[i] for i in expected]


def test_reciprocal_rank_fusion_sums_over_the_rankings_that_hold_a_document() -> None:
    fused = fuse_rankings([["a", "b", "c"], ["c", "a"]], k=60)
    assert [document for document, _ in fused] == ["a", "c", "b"]
    assert dict(fused) == pytest.approx({"a": 1 / 61 + 1 / 62, "c": 1 / 63 + 1 / 61, "b": 1 / 62})


def test_fusion_keeps_the_first_ranking_s_order_among_equals() -> None:
    assert [document for document, _ in fuse_rankings([["a", "b"], ["b", "a"]])] == ["a", "b"]
    assert fuse_rankings([]) == []


def test_a_window_is_reordered_and_the_rest_follows_in_first_pass_order() -> None:
    first = Ranking(np.array([4, 2, 9, 7, 1]), np.array([5, 4, 3, 2, 1], dtype=np.float32))
    found = reorder(first, np.array([4, 9]), np.array([0.1, 0.8], dtype=np.float32))
    assert found.documents.tolist() == [9, 4, 2, 7, 1]
    assert found.scores.tolist() == pytest.approx([0.8, 0.1])


@given(st.permutations(range(12)), st.integers(0, 12), st.randoms(use_true_random=False))
def test_reordering_loses_and_repeats_nothing(documents: list[int], window: int, random: object) -> None:
    first = Ranking(np.array(documents), np.linspace(1, 0, 12, dtype=np.float32))
    scores = np.array([(document * 7) % 5 for document in documents[:window]], dtype=np.float32)
    found = reorder(first, first.documents[:window], scores)
    assert sorted(found.documents.tolist()) == list(range(12))
    assert found.documents[window:].tolist() == documents[window:]
    assert all(np.diff(found.scores) <= 0)


@pytest.mark.parametrize(
    ("window", "documents", "depth"),
    [
        (100, 5000, 100),
        (10, 5000, 100),
        (500, 5000, 500),
        (2000, 5000, 1000),
        (None, 5000, 1000),
        (None, 46, 46),
        (100, 46, 46),
    ],
)
def test_the_depth_covers_cutoffs_and_window(window: int | None, documents: int, depth: int) -> None:
    assert depth_of(window, documents) == depth

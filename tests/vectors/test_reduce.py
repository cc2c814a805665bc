"""Token pooling against scikit-learn's clustering with neighbours alone, and what holds for any rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from es_ttc.vectors.reduce import group_starts, pool_ranges, pool_rows


@st.composite
def texts(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int32], int]:
    """Draw token vectors, the characters of the tokens in order, some without any, and a number of groups."""
    count = draw(st.integers(1, 40))
    rows = draw(arrays(np.float32, (count, 4), elements=st.integers(-8, 8).map(lambda eighths: eighths / 8)))
    lengths = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    ends = np.cumsum(lengths)
    offsets = np.stack([ends - lengths, ends], axis=1).astype(np.int32)
    offsets[np.array(lengths) == 0] = 0
    return rows, offsets, draw(st.integers(1, count))


@given(texts())
def test_groups_follow_each_other_and_cover_their_tokens(
    text: tuple[NDArray[np.float32], NDArray[np.int32], int],
) -> None:
    rows, offsets, groups = text
    starts = group_starts(rows, groups)
    assert len(starts) == groups
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    ranges = pool_ranges(offsets, starts)
    assert ranges.shape == (groups, 2)
    for (first, end), own in zip(ranges.tolist(), np.split(offsets, starts[1:]), strict=True):
        covered = own[own[:, 0] < own[:, 1]]
        expected = [int(covered[:, 0].min()), int(covered[:, 1].max())] if len(covered) else [0, 0]
        assert [first, end] == expected
    lengths = np.linalg.norm(pool_rows(rows, starts), axis=1)
    assert (np.isclose(lengths, 1, atol=1e-5) | (lengths == 0)).all()


@given(texts())
def test_as_many_groups_as_rows_changes_nothing(text: tuple[NDArray[np.float32], NDArray[np.int32], int]) -> None:
    rows, offsets, _ = text
    starts = group_starts(rows, len(rows))
    np.testing.assert_array_equal(starts, np.arange(len(rows)))
    np.testing.assert_array_equal(pool_ranges(offsets, starts), offsets)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float64)
    expected = np.divide(rows, lengths, where=lengths > 0, out=np.zeros_like(rows, dtype=np.float64))
    np.testing.assert_allclose(pool_rows(rows, starts), expected, atol=1e-5)


def by_another_library(rows: NDArray[np.float32], groups: int) -> NDArray[np.int64]:
    """Return the first row of each group, by scikit-learn's clustering of a chain."""
    from scipy.sparse import diags_array
    from sklearn.cluster import AgglomerativeClustering

    ones = np.ones(len(rows) - 1)
    chain: Any = diags_array([ones, ones], offsets=[-1, 1])
    model = AgglomerativeClustering(n_clusters=groups, linkage="ward", connectivity=chain)
    labels = model.fit(rows.astype(np.float64)).labels_
    return np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_those_of_another_library(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 200))
    rows = random.normal(size=(count, 16)).astype(np.float32)
    rows = np.cumsum(rows, axis=0) if seed % 2 else rows
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for groups in {1, count // 4 or 1, -(-count // 2), count}:
        np.testing.assert_array_equal(group_starts(rows, groups), by_another_library(rows, groups))


def test_resembling_neighbours_are_joined_first() -> None:
    rows = np.array([[1, 0], [0.99, 0.1], [0, 1], [0.1, 0.99], [1, 0]], np.float32)
    assert group_starts(rows, 3).tolist() == [0, 2, 4]


def test_no_rows() -> None:
    nothing = np.zeros((0, 4), np.float32)
    starts = group_starts(nothing, 0)
    assert len(starts) == 0
    assert pool_rows(nothing, starts).shape == (0, 4)
    assert pool_ranges(np.zeros((0, 2), np.int32), starts).shape == (0, 2)

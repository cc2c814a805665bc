"""What the paper proves and claims of the method itself, on any corpus."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from es_ttc.rescorers.nnn.active_set import solve
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from tests.rescorers.nnn.fista import fista
from tests.rescorers.nnn.problems import KINDS, rows_of, unit


@given(st.sampled_from(KINDS), st.integers(2, 60), st.integers(2, 24), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_theorem_1_what_dense_retrieval_finds_some_penalty_selects(
    kind: str, n: int, d: int, relevant: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = rows_of(kind, n, d, random)
    query = unit(random.standard_normal(d))
    scores = rows @ query
    order = np.argsort(-scores)
    wanted = order[:relevant]
    least = scores[wanted].min()
    greatest_outside = max(0.0, scores[order[relevant:]].max(initial=0.0))
    half = (least - greatest_outside) / 2
    assume(half > 1e-5)
    # The constants of equation 8, of which l2 is but a lower bound.
    l1 = (least + greatest_outside) / 2
    l2 = 1.001 * max(1e-3, relevant * (scores.max() - l1) / half + relevant - 2)
    solution = solve(Dictionary.of(rows), query, Penalty(l1, l2))
    assert set(solution.support.tolist()) == set(wanted.tolist())


def test_proposition_1_dense_retrieval_fails_where_nnn_finds_both() -> None:
    rows = np.array([[1, 0, 0], [0, 1, 0], [0.95, 0, np.sqrt(1 - 0.95**2)]])
    query = np.array([0.9, 0.436, 0])
    assert set(np.argsort(-(rows @ query))[:2].tolist()) == {0, 2}
    for l2 in (0.0, 0.01):
        assert solve(Dictionary.of(rows), query, Penalty(0.2, l2)).support.tolist() == [0, 1]
    for l2 in (0.05, 1.0):
        assert solve(Dictionary.of(rows), query, Penalty(0.2, l2)).support.tolist() == [0, 1, 2]


@given(st.floats(0.6, 0.999), st.floats(0.01, 0.5), st.floats(0.01, 0.9))
def test_a_near_duplicate_is_kept_out_by_small_l2_and_let_in_by_large(alike: float, l1: float, short: float) -> None:
    dictionary = Dictionary.of(np.array([[1, 0], [alike, np.sqrt(1 - alike**2)]]))
    query = np.array([1.0, 0.0])
    # The chosen one's coefficient is (1 - l1) / (1 + l2); the other's inner product with what it leaves reaches l1 at:
    turn = (1 - l1) / (1 - l1 / alike) - 1
    assert solve(dictionary, query, Penalty(l1, turn * short)).support.tolist() == [0]
    assert solve(dictionary, query, Penalty(l1, turn * (2 - short) + 1e-6)).support.tolist() == [0, 1]


@given(st.integers(1, 80), st.integers(1, 24), st.floats(0, 0.9), st.floats(0, 2), st.integers(0, 2**32 - 1))
def test_one_step_of_fista_ranks_as_dense_retrieval(n: int, d: int, l1: float, l2: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, query = unit(random.standard_normal((n, d))), unit(random.standard_normal(d))
    scores = rows @ query
    x = fista(rows, query[None], Penalty(l1, l2), steps=1)[0]
    above = np.flatnonzero(scores > l1)
    np.testing.assert_array_equal(np.flatnonzero(x), above)
    np.testing.assert_array_equal(np.argsort(x[above]), np.argsort(scores[above]))


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_a_few_steps_of_fista_leave_documents_that_the_solution_has_not(l2: float) -> None:
    random = np.random.default_rng(1)
    topics = unit(random.standard_normal((20, 64)))
    rows = unit(topics[random.integers(0, 20, 500)] + 0.8 * unit(random.standard_normal((500, 64))) + 0.5 * topics[0])
    query = unit(rows[:4].sum(axis=0))
    penalty = Penalty(0.05, l2)
    exact = solve(Dictionary.of(rows), query, penalty)
    selected = [np.count_nonzero(fista(rows, query[None], penalty, steps=steps)[0]) for steps in (1, 10, 50, 3000)]
    assert selected[0] > selected[1] > selected[2] > len(exact.support)
    assert selected[3] == len(exact.support)
    # So one must rank by coefficient and cut: then many fewer steps will do.
    x = fista(rows, query[None], penalty, steps=300)[0]
    assert set(np.argsort(-x)[: len(exact.support)].tolist()) == set(exact.support.tolist())

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.nnn.active_set import solve
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.rescorers.nnn.path import RESOLUTION, changes, greatest_l1, select
from tests.rescorers.nnn.problems import Problem, problems, unit


@given(problems)
def test_every_point_is_certified_and_l1_falls_to_the_end(problem: Problem) -> None:
    l1, l2 = problem.penalty.l1, problem.penalty.l2
    points = list(changes(problem.dictionary, problem.query, l2=l2, l1=l1))
    assert points[-1].penalty == problem.penalty
    l1s = [point.penalty.l1 for point in points]
    assert all(ahead > stack for ahead, stack in pairwise(l1s))
    assert len(points) <= 4 * len(problem.rows) + 10
    for point in points:
        assert point.converged
        assert point.penalty.l2 == l2


@given(problems, st.floats(0.02, 0.98))
def test_between_two_points_the_selection_is_that_of_the_first(problem: Problem, share: float) -> None:
    l2 = max(problem.penalty.l2, 0.05)
    points = list(changes(problem.dictionary, problem.query, l2=l2))
    least = RESOLUTION * greatest_l1(problem.dictionary, problem.query)
    for first, second in pairwise(points):
        fall = first.penalty.l1 - second.penalty.l1
        if fall < 100 * least:
            continue
        between = solve(problem.dictionary, problem.query, Penalty(first.penalty.l1 - share * (fall - least), l2))
        # Only a document that joins or leaves within the resolution may differ.
        odd = np.setxor1d(between.support, first.support)
        assert between.x[odd].max(initial=0) <= 1e-3 * problem.scale


@given(problems, st.integers(1, 12))
def test_the_stopping_rule_is_the_first_point_with_so_many(problem: Problem, documents: int) -> None:
    l2 = problem.penalty.l2
    found = select(problem.dictionary, problem.query, documents, l2=l2)
    sizes = [(point.penalty.l1, len(point.support)) for point in changes(problem.dictionary, problem.query, l2=l2)]
    enough = [l1 for l1, size in sizes if size >= documents]
    assert found.penalty.l1 == (enough[0] if enough else 0)
    np.testing.assert_array_equal(found.x, select(problem.dictionary, problem.query, documents, l2=l2).x)


def test_k_documents_are_k_documents() -> None:
    random = np.random.default_rng(6)
    rows = unit(random.standard_normal((300, 32)) + 0.5 * random.standard_normal(32)).astype(np.float32)
    query = unit(random.standard_normal(32)).astype(np.float32)
    dictionary = Dictionary.of(rows)
    for l2 in (0.0, 0.1, 1.0):
        for documents in (1, 2, 5, 10, 16):
            solution = select(dictionary, query, documents, l2=l2)
            assert len(solution.support) == documents
            assert solution.converged
    first = int(np.argmax(rows @ query))
    assert select(dictionary, query, 1).support.tolist() == [first]


def test_duplicates_never_fill_the_places_without_l2() -> None:
    random = np.random.default_rng(7)
    rows = np.repeat(unit(random.standard_normal((12, 16))), 5, axis=0)
    query = unit(rows[0] + rows[5] + rows[10] + 0.5 * rows[15])
    solution = select(Dictionary.of(rows), query, 4)
    assert len(solution.support) == 4
    assert len(set((solution.support // 5).tolist())) == 4


def test_where_no_more_can_help_the_path_ends_at_no_l1() -> None:
    solution = select(Dictionary.of(np.eye(3)), np.array([1.0, 0.5, -1.0]), 3)
    assert solution.support.tolist() == [0, 1]
    assert solution.penalty.l1 == 0
    nothing = select(Dictionary.of(np.eye(3)), np.array([-1.0, -0.5, 0.0]), 1)
    assert nothing.support.tolist() == []
    assert greatest_l1(Dictionary.of(np.eye(3)), np.array([-1.0, -0.5, -1.0])) == 0


def test_path_for_no_document_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[documents\] is 0"):
        select(Dictionary.of(np.eye(2)), np.ones(2), 0)

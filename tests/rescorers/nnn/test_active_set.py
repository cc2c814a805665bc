"""The exact solver against others. scikit-learn takes seconds to import, so it is where it is asked."""

import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from es_ttc.rescorers.nnn.active_set import TOLERANCE, Solution, solve, solve_batch
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.vectors.tokens import Float64
from tests.rescorers.nnn.certificates import duality_gap, gradient, kkt_residual, objective
from tests.rescorers.nnn.fista import fista
from tests.rescorers.nnn.problems import KINDS, Problem, problem_of, problems, projected_gradient, unit


def solved(problem: Problem) -> Solution:
    return solve(problem.dictionary, problem.query, problem.penalty)


def value(problem: Problem, x: Float64) -> float:
    return objective(problem.rows.astype(np.float64), problem.query, x, problem.penalty)


def elastic_net(problem: Problem) -> Float64:
    """scikit-learn's coordinate descent: its objective is ours divided by the number of components."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import ElasticNet

    l1, l2 = problem.penalty.l1, problem.penalty.l2
    dims = len(problem.query)
    model = ElasticNet(
        alpha=(l1 + l2) / dims, l1_ratio=l1 / (l1 + l2), positive=True, fit_intercept=False, tol=1e-13, max_iter=100_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(problem.rows.astype(np.float64).T, problem.query.astype(np.float64))
    x: Float64 = model.coef_
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_every_solution_is_certified(kind: str) -> None:
    for seed in range(150):
        problem = problem_of(seed, kind=kind)
        solution = solved(problem)
        x = solution.x
        assert solution.converged, seed
        assert solution.kkt_residual <= TOLERANCE * problem.scale, seed
        assert (solution.coefficients > 0).all(), seed
        assert (np.diff(solution.support) > 0).all(), seed
        # The certificate holds without the solver's word.
        slope = gradient(problem.rows.astype(np.float64), problem.query, x, problem.penalty)
        assert kkt_residual(x, slope) <= 2 * TOLERANCE * problem.scale, seed
        if problem.penalty.l1:
            gap = duality_gap(problem.rows.astype(np.float64), problem.query, x, problem.penalty)
            assert gap <= 1e-8 * problem.scale**2, seed


@pytest.mark.slow
@given(problems)
def test_no_other_solver_finds_a_lower_objective(problem: Problem) -> None:
    solution = solved(problem)
    own = value(problem, solution.x)
    penalty, rows = problem.penalty, problem.rows.astype(np.float64)
    if penalty.l1 == 0:
        # sklearn advises against no l1 at all; l2 is one more row of components for the least-squares solver.
        wide = np.concatenate((rows.T, np.sqrt(penalty.l2) * np.eye(len(rows))))
        reference, _ = nnls(wide, np.concatenate((problem.query.astype(np.float64), np.zeros(len(rows)))))
    else:
        reference = elastic_net(problem)
    # What the certificate promises of a convex objective: the violation that it allows, times the coefficients.
    promised = TOLERANCE * problem.scale * float(reference.sum() + solution.x.sum())
    assert own <= value(problem, reference) + promised + 1e-9 * problem.scale**2


@pytest.mark.slow
@given(problems, st.sampled_from([0.1, 0.5, 2.0]))
def test_with_l2_the_solution_is_unique_whoever_finds_it(problem: Problem, l2: float) -> None:
    problem = Problem(problem.rows, problem.query, Penalty(problem.penalty.l1, l2))
    own = solved(problem).x
    np.testing.assert_allclose(own, projected_gradient(problem, l2=l2), atol=1e-8 * problem.scale)
    rows, query = problem.rows.astype(np.float64), problem.query.astype(np.float64)
    reference = fista(rows, query[None], problem.penalty, steps=1500, restart=True)[0]
    np.testing.assert_allclose(own, reference, atol=1e-7 * problem.scale)
    if problem.penalty.l1:
        np.testing.assert_allclose(own, elastic_net(problem), atol=1e-5 * problem.scale)


@given(problems, st.integers(0, 2**32 - 1))
def test_a_permutation_of_the_documents_permutes_the_coefficients(problem: Problem, seed: int) -> None:
    problem = Problem(problem.rows, problem.query, Penalty(problem.penalty.l1, max(problem.penalty.l2, 0.1)))
    order = np.random.default_rng(seed).permutation(len(problem.rows))
    there = solved(Problem(problem.rows[order], problem.query, problem.penalty)).x
    np.testing.assert_allclose(there, solved(problem).x[order], atol=1e-8 * problem.scale)


@given(problems, st.integers(0, 2**32 - 1))
@example(problem_of(67258, kind="near-duplicates"), 0)  # the cold start ends 5e-9 above the warm one, within its gap
def test_a_warm_start_leads_to_the_same_objective(problem: Problem, seed: int) -> None:
    random = np.random.default_rng(seed)
    cold = solved(problem)
    for start in (cold.support, np.flatnonzero(random.random(len(problem.rows)) < random.random())):
        warm = solve(problem.dictionary, problem.query, problem.penalty, start=start)
        assert warm.converged
        # by convexity, f(a) - f(b) <= the violation of the conditions at a, times the distance from a to b
        apart = (warm.x + cold.x).sum() * max(warm.kkt_residual, cold.kkt_residual)
        assert value(problem, warm.x) == pytest.approx(value(problem, cold.x), abs=apart + 1e-12 * problem.scale**2)
    again = solve(problem.dictionary, problem.query, problem.penalty, start=cold.support)
    assert again.iterations == 1 or problem.penalty.l2 == 0
    np.testing.assert_array_equal(solved(problem).x, cold.x)


@pytest.mark.parametrize(("n", "d"), [(3000, 16), (40, 384), (1500, 384)])
def test_large_windows_in_float32_are_solved_to_float64s_accuracy(n: int, d: int) -> None:
    random = np.random.default_rng(n)
    common = random.standard_normal(d)
    rows = unit(random.standard_normal((n, d)) + common).astype(np.float32)
    query = unit(rows[:3].sum(axis=0) + 0.3 * random.standard_normal(d)).astype(np.float32)
    for penalty in (Penalty(0.2), Penalty(0.05, 0.05), Penalty(0.0, 1.0)):
        solution = solve(Dictionary.of(rows), query, penalty)
        assert solution.converged
        assert duality_gap(rows.astype(np.float64), query, solution.x, penalty) <= 1e-9
        exact = solve(Dictionary.of(rows.astype(np.float64)), query, penalty)
        np.testing.assert_allclose(solution.x, exact.x, atol=1e-9)


def test_rows_that_are_independent_by_rounding_alone_are_certified_to_what_float64_can_tell() -> None:
    random = np.random.default_rng(0)
    rows = unit(random.standard_normal((55, 2)) @ random.standard_normal((2, 14))).astype(np.float32)
    solution = solve(Dictionary.of(rows), random.standard_normal(14), Penalty(0.0))
    assert solution.coefficients.sum() > 1e5
    assert solution.converged
    assert solution.kkt_residual < 1e-14 * solution.coefficients.sum()


def test_active_set_without_l2_takes_the_first_of_duplicates() -> None:
    rows = np.array([[0.8, 0.6], [1, 0], [1, 0], [0, 1]])
    solution = solve(Dictionary.of(rows), np.array([1.0, 0.0]), Penalty(0.1))
    np.testing.assert_array_equal(solution.support, [1])
    assert solution.coefficients[0] == pytest.approx(0.9)
    with_l2 = solve(Dictionary.of(rows), np.array([1.0, 0.0]), Penalty(0.1, 0.1))
    assert with_l2.x[1] == pytest.approx(with_l2.x[2])
    assert with_l2.x[1] > 0


def test_a_document_between_two_others_replaces_both() -> None:
    # It lies in their span, so without l2 its curvature given them is 0.
    rows = unit(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    query = np.array([1.0, 1.0])
    for start in (None, np.array([0, 1])):
        solution = solve(Dictionary.of(rows), query, Penalty(0.1), start=start)
        np.testing.assert_array_equal(solution.support, [2])
        assert solution.coefficients[0] == pytest.approx(np.sqrt(2) - 0.1)


def test_a_query_of_zeros_selects_nothing_and_an_empty_dictionary_is_one() -> None:
    rows = unit(np.random.default_rng(0).standard_normal((5, 3)))
    for dictionary, query in ((Dictionary.of(rows), np.zeros(3)), (Dictionary.of(np.empty((0, 3))), np.ones(3))):
        solution = solve(dictionary, query, Penalty(0.0))
        assert solution.converged
        assert len(solution.support) == 0
        assert solution.x.shape == (len(dictionary),)


def test_a_bound_on_iterations_is_kept_and_told() -> None:
    problem = problem_of(3, kind="general", most=60)
    problem = Problem(problem.rows, np.ones_like(problem.query), Penalty(1e-3))
    free = solved(problem)
    assert free.iterations > 3
    bound = solve(problem.dictionary, problem.query, problem.penalty, max_iterations=2)
    assert not bound.converged
    assert bound.iterations == 2
    slope = gradient(problem.rows.astype(np.float64), problem.query, bound.x, problem.penalty)
    assert bound.kkt_residual == pytest.approx(kkt_residual(bound.x, slope), abs=1e-6)
    assert value(problem, free.x) < value(problem, bound.x)


def test_a_batch_is_its_queries() -> None:
    random = np.random.default_rng(5)
    dictionary = Dictionary.of(unit(random.standard_normal((50, 8))).astype(np.float32))
    queries = random.standard_normal((4, 8)).astype(np.float32)
    penalty = Penalty(0.1, 0.1)
    single = [solve(dictionary, query, penalty) for query in queries]
    batch = list(solve_batch(dictionary, queries, penalty))
    warm = list(solve_batch(dictionary, queries, penalty, starts=[one.support for one in single]))
    for one, two, three in zip(single, batch, warm, strict=True):
        np.testing.assert_array_equal(one.x, two.x)
        np.testing.assert_allclose(one.x, three.x, atol=1e-9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones(3), "matrix"),
        (np.ones((2, 3), dtype=np.int64), "int64"),
        (np.array([[1.0, np.nan]]), "finite"),
        (np.array([[1.0, np.inf]]), "finite"),
    ],
)
def test_a_dictionary_is_a_finite_float_matrix(rows: Float64, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dictionary.of(rows)


def test_a_query_fits_the_dictionary() -> None:
    dictionary = Dictionary.of(np.ones((2, 3)))
    with pytest.raises(ValueError, match="3 components"):
        solve(dictionary, np.ones(4), Penalty(0.1))
    with pytest.raises(ValueError, match="finite"):
        solve(dictionary, np.array([1.0, np.nan, 0.0]), Penalty(0.1))

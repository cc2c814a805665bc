import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.nnn.active_set import solve
from es_ttc.rescorers.nnn.objective import Penalty, dual_objective
from tests.rescorers.nnn.certificates import dual_point, duality_gap, gradient, kkt_residual, objective, residual
from tests.rescorers.nnn.problems import Problem, problems


def literal(problem: Problem, x: list[float]) -> float:
    """Equation 1, one number at a time."""
    rows, query, penalty = problem.rows.tolist(), problem.query.tolist(), problem.penalty
    total = penalty.l1 * math.fsum(x) + penalty.l2 / 2 * math.fsum(value * value for value in x)
    for component, wanted in enumerate(query):
        rebuilt = math.fsum(value * row[component] for value, row in zip(x, rows, strict=True))
        total += (wanted - rebuilt) ** 2 / 2
    return total


@given(problems, st.integers(0, 2**32 - 1))
def test_objective_and_gradient_are_those_of_equation_1(problem: Problem, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.maximum(random.standard_normal(len(problem.rows)), 0)
    value = objective(problem.rows, problem.query, x, problem.penalty)
    assert value == pytest.approx(literal(problem, x.tolist()), rel=1e-12)
    slope = gradient(problem.rows, problem.query, x, problem.penalty)
    direction = random.standard_normal(len(x))
    # Of a quadratic the central difference is the derivative.
    ahead, stack = (literal(problem, (x + sign * 1e-3 * direction).tolist()) for sign in (1, -1))
    assert (ahead - stack) / 2e-3 == pytest.approx(float(slope @ direction), rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(
        residual(problem.rows, problem.query, x),
        problem.query.astype(np.float64) - x @ problem.rows.astype(np.float64),
        atol=1e-12 * problem.scale,
    )


def test_the_kkt_residual_is_zero_at_solutions_only() -> None:
    x = np.array([0.5, 0.0, 0.0])
    assert kkt_residual(x, np.array([0.0, 0.0, 3.0])) == 0
    assert kkt_residual(x, np.array([-0.2, 0.0, 3.0])) == 0.2
    assert kkt_residual(x, np.array([0.2, 0.0, 3.0])) == 0.2
    assert kkt_residual(x, np.array([0.0, -0.3, 3.0])) == 0.3
    assert kkt_residual(np.empty(0), np.empty(0)) == 0


@given(problems, st.floats(0, 2))
def test_the_gap_bounds_what_any_point_could_gain(problem: Problem, noise: float) -> None:
    rows, query, penalty = problem.rows.astype(np.float64), problem.query, problem.penalty
    best = solve(problem.dictionary, query, penalty).x
    x = np.abs(best + noise * np.random.default_rng(0).standard_normal(len(best)))
    suboptimality = objective(rows, query, x, penalty) - objective(rows, query, best, penalty)
    assert duality_gap(rows, query, x, penalty) >= suboptimality - 1e-9 * problem.scale**2
    if penalty.l1:
        assert duality_gap(rows, query, best, penalty) <= 1e-8 * problem.scale**2


@given(problems)
def test_the_dual_point_is_feasible_and_below(problem: Problem) -> None:
    x = np.zeros(len(problem.rows))
    point = dual_point(problem.rows, problem.query, x, problem.penalty)
    if problem.penalty.l2 == 0:
        assert np.max(problem.rows @ point, initial=0) <= problem.penalty.l1 + 1e-6 * problem.scale
    value = dual_objective(problem.rows, problem.query, point, problem.penalty)
    assert value <= objective(problem.rows, problem.query, x, problem.penalty) + 1e-12 * problem.scale**2


@pytest.mark.parametrize(
    ("l1", "l2", "field"), [(-1.0, 0.0, "l1"), (math.nan, 0.0, "l1"), (0.1, -0.1, "l2"), (0.1, math.inf, "l2")]
)
def test_a_penalty_is_finite_and_not_negative(l1: float, l2: float, field: str) -> None:
    with pytest.raises(ValueError, match=rf"\[{field}\]"):
        Penalty(l1, l2)

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.rescorers.nnn.active_set import solve
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.vectors.tokens import Float64
from tests.rescorers.nnn.certificates import duality_gap
from tests.rescorers.nnn.fista import fista, iterates, lipschitz
from tests.rescorers.nnn.problems import Problem, problems, unit


def literal(rows: Float64, query: Float64, penalty: Penalty, steps: int) -> list[float]:
    """Equation 5, one document at a time."""
    bound = max(np.linalg.eigvalsh(rows.T @ rows)) + penalty.l2
    n = len(rows)
    x, y, theta = [0.0] * n, [0.0] * n, 1.0
    for _ in range(steps):
        left = query - sum((y[j] * rows[j] for j in range(n)), np.zeros(len(query)))
        slopes = [-float(rows[j] @ left) + penalty.l2 * y[j] + penalty.l1 for j in range(n)]
        following = [max(0.0, y[j] - slopes[j] / bound) for j in range(n)]
        theta_next = (1 + math.sqrt(1 + 4 * theta * theta)) / 2
        y = [following[j] + (theta - 1) / theta_next * (following[j] - x[j]) for j in range(n)]
        x, theta = following, theta_next
    return x


@settings(max_examples=40)
@given(problems, st.integers(1, 12))
def test_fista_step_equals_equation_5(problem: Problem, steps: int) -> None:
    rows, query = problem.rows.astype(np.float64), problem.query.astype(np.float64)
    if not rows.any():
        return
    x = fista(rows, query[None], problem.penalty, steps=steps)[0]
    np.testing.assert_allclose(x, literal(rows, query, problem.penalty, steps), atol=1e-10 * problem.scale)


@given(problems, st.sampled_from([0.05, 0.5]), st.booleans())
def test_fista_converges_to_the_active_set_solution(problem: Problem, l2: float, restart: bool) -> None:
    penalty = Penalty(problem.penalty.l1, l2)
    rows, query = problem.rows.astype(np.float64), problem.query.astype(np.float64)
    x = fista(rows, query[None], penalty, steps=1500, restart=restart)[0]
    assert duality_gap(rows, query, x, penalty) <= 1e-6 * problem.scale**2
    np.testing.assert_allclose(x, solve(problem.dictionary, problem.query, penalty).x, atol=1e-3 * problem.scale)


def test_restarts_need_far_fewer_steps() -> None:
    random = np.random.default_rng(2)
    rows = unit(random.standard_normal((200, 32)) + random.standard_normal(32))
    query = unit(rows[:3].sum(axis=0))
    penalty = Penalty(0.05, 0.05)

    def steps_to(gap: float, restart: bool) -> int:
        steps = islice(iterates(rows, query[None], penalty, restart=restart), 20_000)
        return next(step for step, x in enumerate(steps, 1) if duality_gap(rows, query, x[0], penalty) < gap)

    assert 3 * steps_to(1e-10, True) < steps_to(1e-10, False)


@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_is_its_queries_and_the_type_is_the_rows(restart: bool) -> None:
    random = np.random.default_rng(3)
    rows = unit(random.standard_normal((30, 8))).astype(np.float32)
    queries = random.standard_normal((5, 8)).astype(np.float32)
    penalty = Penalty(0.1, 0.01)
    together = fista(rows, queries, penalty, steps=60, restart=restart)
    assert together.dtype == np.float32
    assert together.shape == (5, 30)
    assert (together >= 0).all()
    for query, x in zip(queries, together, strict=True):
        np.testing.assert_allclose(fista(rows, query[None], penalty, steps=60, restart=restart)[0], x, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (0, 4)])
def test_the_bound_is_the_greatest_eigenvalue(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(4).standard_normal(shape)
    wanted = float(np.linalg.eigvalsh(rows.T @ rows)[-1])
    assert lipschitz(rows, 0.25) == pytest.approx(wanted + 0.25)


def test_fista_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[steps\] is 0"):
        fista(np.eye(2), np.ones((1, 2)), Penalty(0.1), steps=0)

"""The unrolled solver: equation 5, its gradient, and the exact solution that it goes to."""

import numpy as np
import pytest
import torch

from es_ttc.lab.training.recipes.nnn import lacking, lipschitz, selection_scores, unrolled
from es_ttc.rescorers.nnn import Dictionary, Penalty, solve
from tests.rescorers.nnn.fista import fista
from tests.rescorers.nnn.fista import lipschitz as bound_of
from tests.rescorers.nnn.problems import rows_of, unit

SHAPES = [("general", 7, 4), ("general", 30, 6), ("alike", 12, 5), ("duplicates", 9, 4)]


def problem(kind: str, n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(n + d)
    return torch.from_numpy(rows_of(kind, n, d, random)), torch.from_numpy(unit(random.standard_normal((3, d))))


@pytest.mark.parametrize(("kind", "n", "d"), SHAPES)
def test_torch_fista_equals_the_numpy_solver(kind: str, n: int, d: int) -> None:
    documents, queries = problem(kind, n, d)
    bound = bound_of(documents.numpy(), 0.05)
    assert float(lipschitz(documents, 0.05)) == pytest.approx(bound)
    for steps in (1, 7):
        expected = fista(documents.numpy(), queries.numpy(), Penalty(0.05, 0.05), steps=steps)
        np.testing.assert_allclose(unrolled(documents, queries, 0.05, 0.05, steps=steps).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("kind", "n", "d"), SHAPES)
def test_torch_fista_converges_to_the_exact_solution(kind: str, n: int, d: int) -> None:
    documents, queries = problem(kind, n, d)
    x = unrolled(documents, queries, 0.05, 0.1, steps=4000).numpy()
    exact = [solve(Dictionary.of(documents.numpy()), query, Penalty(0.05, 0.1)).x for query in queries.numpy()]
    np.testing.assert_allclose(x, exact, atol=1e-6)


@pytest.mark.parametrize("kind", ["general", "alike"])
def test_torch_fista_gradient_is_numerical(kind: str) -> None:
    documents, queries = (one.requires_grad_() for one in problem(kind, 6, 4))
    penalties = torch.tensor([0.03, 0.07], dtype=torch.float64, requires_grad=True)
    bound = lipschitz(documents, 0.07)
    relevant = torch.arange(6).expand(3, 6) % 2 == 0

    def solved(d: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        x = unrolled(d, q, p[0], p[1], steps=4, bound=bound)
        return selection_scores(d, q, x, p[0], relevant)

    assert torch.autograd.gradcheck(solved, (documents, queries, penalties))


def test_torch_fista_gradient_is_that_of_the_exact_solution() -> None:
    """The implicit function theorem on the selection: dx = H^-1 (dD q - ...), here by differences of exact solves."""
    documents, queries = problem("general", 8, 5)
    queries = queries[:1].requires_grad_()
    weights = torch.linspace(1, 2, 8, dtype=torch.float64)
    (unrolled(documents, queries, 0.05, 0.2, steps=3000) @ weights).sum().backward()  # type: ignore[no-untyped-call]
    assert queries.grad is not None
    step, dictionary = 1e-6, Dictionary.of(documents.numpy())
    for component in range(5):
        moved = np.zeros(5)
        moved[component] = step
        ends = [
            solve(dictionary, queries.detach().numpy()[0] + sign * moved, Penalty(0.05, 0.2)).x @ weights.numpy()
            for sign in (1, -1)
        ]
        assert float(queries.grad[0, component]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-5)


def test_an_unselected_document_lacks_correlation_and_slack_pulls_it_in() -> None:
    documents, queries = problem("general", 30, 6)
    x = unrolled(documents, queries, 0.1, 0.1, steps=3000)
    lack = lacking(documents, queries, x, 0.1)
    assert (lack[x == 0] <= 1e-9).all()
    np.testing.assert_allclose(lack[x > 0], 0.1 * x[x > 0], atol=1e-6)
    documents.requires_grad_()
    for slack, pulled in ((0.0, False), (1.0, True)):
        documents.grad = None
        x = unrolled(documents, queries[:1], 0.1, 0.1, steps=50)
        out = int(torch.nonzero(x[0] == 0)[0])
        relevant = torch.arange(30)[None] == out
        scores = selection_scores(documents, queries[:1], x, 0.1, relevant, slack=slack)
        assert ((x == 0) & ~relevant == (scores == 0) & ~relevant).all()
        scores[0, out].backward()  # type: ignore[no-untyped-call]
        gradient: torch.Tensor | None = documents.grad
        assert gradient is not None
        assert bool(gradient.any()) == pulled

"""The bootstrap against a literal loop, and against distributions whose answer is known."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from es_ttc.lab.evaluation import bootstrap
from es_ttc.lab.evaluation.bootstrap import compare, exact_p_value, interval, p_value, resampled_means


def slow_means(values: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    n = values.shape[1]
    rows = []
    for _ in range(resamples):
        draw = list(generator.integers(0, n, size=(n,)))
        rows.append([sum(series[i] for i in draw) / n for series in values])
    return np.array(rows)


def test_resampled_means_equal_a_literal_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random((3, 17))
    expected = slow_means(values, 50, seed=5)
    np.testing.assert_allclose(resampled_means(values, resamples=50, seed=5), expected, atol=1e-12)
    monkeypatch.setattr(bootstrap, "_BLOCK_BYTES", 17 * 8 * 7)  # seven resamples a block, and a remainder
    np.testing.assert_allclose(resampled_means(values, resamples=50, seed=5), expected, atol=1e-12)


def test_the_draw_is_paired_and_seeded() -> None:
    values = np.random.default_rng(2).random(40)
    first = resampled_means(np.stack([values, values + 0.25]), resamples=200)
    np.testing.assert_allclose(first[:, 1] - first[:, 0], 0.25, atol=1e-12)
    np.testing.assert_array_equal(first, resampled_means(np.stack([values, values + 0.25]), resamples=200))
    assert not np.array_equal(first, resampled_means(np.stack([values, values]), resamples=200, seed=1))


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    covered = significant = 0
    for trial in range(300):
        differences = generator.normal(0.1, 0.3, size=60)
        means = resampled_means(np.stack([differences, np.zeros(60)]), resamples=500, seed=trial)
        comparison = compare(differences, np.zeros(60), means[:, 0], means[:, 1])
        covered += comparison.interval.low <= 0.1 <= comparison.interval.high
        null = compare(differences - 0.1, np.zeros(60), means[:, 0] - 0.1, means[:, 1])
        significant += null.p < 0.05
    assert 0.90 <= covered / 300 <= 0.98
    assert 0.02 <= significant / 300 <= 0.10


def test_the_interval_of_a_mean_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(4).random(2000)
    found = interval(resampled_means(values[None], resamples=4000)[:, 0])
    half = 1.96 * values.std() / np.sqrt(2000)
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_wins_ties_and_losses_at_one_thousandth() -> None:
    baseline = np.array([0.5, 0.5, 0.5, 0.5, 0.5])
    method = np.array([0.9, 0.5009, 0.5, 0.4991, 0.4])
    means = resampled_means(np.stack([method, baseline]))
    comparison = compare(method, baseline, means[:, 0], means[:, 1])
    assert (comparison.wins, comparison.ties, comparison.losses) == (1, 3, 1)
    assert comparison.delta == pytest.approx(0.06)


def test_p_value_is_below_5_percent_where_the_interval_excludes_zero() -> None:
    for shift in np.linspace(0, 0.2, 21):
        differences = np.random.default_rng(6).normal(shift, 0.3, size=50)
        deltas = resampled_means(differences[None], resamples=2000)[:, 0]
        found = interval(deltas)
        if abs(p_value(deltas) - 0.05) > 0.005:  # within rounding of the quantile they may differ
            assert (p_value(deltas) < 0.05) == (found.low > 0 or found.high < 0)


def test_p_value_is_1_without_difference_and_least_for_equal_gains() -> None:
    assert p_value(np.zeros(999)) == 1.0
    assert p_value(np.ones(999)) == pytest.approx(2 / 1000)
    assert p_value(-np.ones(999)) == pytest.approx(2 / 1000)


def test_one_query_has_an_interval_of_no_width() -> None:
    found = interval(resampled_means(np.array([[0.4]]), resamples=10)[:, 0])
    assert found.low == found.high == pytest.approx(0.4)


def test_no_query_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one query"):
        resampled_means(np.empty((2, 0)))


@pytest.mark.parametrize("n", [2, 7, 12])
def test_the_exact_test_is_scipys(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.2, 0.3, size=n).round(2)
    expected = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=10_000)  # all
    assert exact_p_value(differences) == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("n", [1, 5, 29])
def test_few_queries_show_no_more_than_they_allow(n: int) -> None:
    values = np.linspace(0.1, 0.9, n)
    means = resampled_means(np.stack([values, np.zeros(n)]))
    assert compare(values, np.zeros(n), means[:, 0], means[:, 1]).p == 2.0 ** -(n - 1)
    assert exact_p_value(np.zeros(n)) == 1.0

"""Relevance fitted to judged hits: the model, its figures, and when it is not to be trusted."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import mannwhitneyu

from es_ttc.lab.ranking.relevance import (
    MIN_CALIBRATION_QUERIES,
    MIN_HITS,
    auc,
    calibration_figures,
    evaluated,
    fit_relevance,
    judged_hits,
)
from es_ttc.lab.ranking.weights import normalised
from es_ttc.rescorers.relevance import MIN_WINDOW, Calibration
from tests.ranking.pools import random_pools


def test_the_model_is_the_constrained_maximum_and_monotone() -> None:
    hits = judged_hits(random_pools(60, seed=1))
    model = fit_relevance(hits)
    signals = np.column_stack([*hits.signals.values()])
    scaled = (signals - signals.mean(axis=0)) / signals.std(axis=0)
    signs = 2 * hits.relevant - 1

    def loss(at: np.ndarray) -> float:
        return float(np.logaddexp(0, -signs * (scaled @ at[:-1] + at[-1])).sum() + (at[:-1] ** 2).sum() / 2)

    bounds = [(0, None)] * 4 + [(None, None)]
    best = minimize(loss, np.zeros(5), method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12}).x
    np.testing.assert_allclose(model.of(hits.signals), 1 / (1 + np.exp(-(scaled @ best[:-1] + best[-1]))), atol=2e-3)
    assert min(model.weights.values()) >= 0


def test_figures_are_those_of_the_definitions() -> None:
    random = np.random.default_rng(0)
    predicted = random.random(500).round(2)
    relevant = (random.random(500) < predicted).astype(float)
    pairs = mannwhitneyu(predicted[relevant == 1], predicted[relevant == 0]).statistic
    assert auc(relevant, predicted) == pytest.approx(pairs / relevant.sum() / (1 - relevant).sum())
    assert calibration_figures(relevant, predicted).error < 0.1
    assert calibration_figures(relevant, predicted / 2).error == pytest.approx(
        relevant.mean() - predicted.mean() / 2, abs=0.05
    )
    assert auc(np.zeros(3), predicted[:3]) == 0.5


def test_first_hits_are_those_of_blend_and_unjudged_ones_can_be_left_out() -> None:
    pools = random_pools(5, seed=3, missing=0.1)
    pool, mean = (
        pools.pools[0],
        normalised(pools, "z")[0] @ pools.default_weights()[0] / pools.default_weights()[0].sum(),
    )
    first = np.argsort(-mean[: len(pool.documents)], kind="stable")[:10]
    whole = first[~np.isnan(pool.scores[first, 1:]).any(axis=1)]
    hits = judged_hits(pools)
    np.testing.assert_allclose(hits.signals["blend"][hits.query == 0], mean[whole], rtol=1e-5)
    some = {pool.query: {pool.documents[whole[1]]: 1}}
    assert judged_hits(pools, some).signals == {name: values[1:2] for name, values in hits.signals.items()}


@pytest.mark.parametrize(
    ("queries", "useful", "lacking"),
    [(60, 3.0, []), (MIN_CALIBRATION_QUERIES - 1, 3.0, ["queries"]), (60, 0.0, ["Brier"])],
)
def test_evaluated_names_what_a_fit_lacks(queries: int, useful: float, lacking: list[str]) -> None:
    found = evaluated(judged_hits(random_pools(queries, useful=useful)))
    assert len(found.lacking) == len(lacking)
    assert all(word in sentence for word, sentence in zip(lacking, found.lacking, strict=True))
    if not lacking:
        assert found.figures.auc > 0.5
        assert found.figures.error < 0.1
        assert [*found.by_queries] == [20]
    few = judged_hits(random_pools(2))
    assert sum(str(MIN_HITS) in sentence for sentence in evaluated(few).lacking) == 2


def test_a_small_window_takes_the_model_without_other_documents() -> None:
    fitted = evaluated(judged_hits(random_pools(40)))
    figures = {"queries": 40, "auc": 0.9, "error": 0.0}
    found = Calibration(names=("shop",), encoder="none", model=fitted.model, few=fitted.few, **figures)
    random = np.random.default_rng(0)
    signals = {str(name): random.standard_normal(MIN_WINDOW + 1).astype(np.float32) for name in found.model.weights}
    signals["dense"][3] = np.nan
    every = found.probabilities(signals)
    assert np.isnan(every[3])
    assert not np.isnan(np.delete(every, 3)).any()
    for model, part in ((found.model, slice(0, None)), (found.few, slice(0, MIN_WINDOW))):
        odds = model.intercept + sum(weight * signals[name][part] for name, weight in model.weights.items())
        of_part = found.probabilities({name: values[part] for name, values in signals.items()})
        np.testing.assert_allclose(of_part, 1 / (1 + np.exp(-odds)), rtol=1e-4)

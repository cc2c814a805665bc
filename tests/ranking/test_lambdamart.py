"""Trees learned over signals: they find what is useful, gain nothing from noise, and are served as they were fitted."""

from dataclasses import replace

import numpy as np
import pytest

from es_ttc.errors import InvalidRequest
from es_ttc.lab.ranking.lambdamart import RankOptions, fit_trees, train_trees, values_of_trees
from es_ttc.lab.ranking.weights import tune_weights, values_of_default
from es_ttc.rescorers.learned.fields import NumericField
from tests.ranking.pools import random_pools

OPTIONS = RankOptions(trees=20, least=20)


def test_the_useful_signal_is_learned_and_the_gain_is_clear() -> None:
    pools = random_pools(120, missing=0.1)
    found = train_trees(pools, "ndcg@5", folds=4, options=OPTIONS)
    assert found.clear
    assert max(found.gains, key=lambda name: found.gains[name]) == "late_interaction"
    assert found.trees.problem(4) is None
    fresh = random_pools(60, seed=1, missing=0.1)
    gain = values_of_trees(fresh, found.trees, 1.0, "ndcg@5").mean() - values_of_default(fresh, "ndcg@5").mean()
    assert gain > 0.02


def test_trees_over_fewer_signals_are_compared_with_the_default_of_all() -> None:
    pools = random_pools(60)
    found = train_trees(pools, "ndcg@5", folds=3, names=("lexical", "dense"), options=OPTIONS)
    np.testing.assert_array_equal(found.default, values_of_default(pools, "ndcg@5"))
    assert set(found.gains) == {"lexical", "dense"}
    assert found.against_default.delta < 0


def test_noise_gains_nothing_clear() -> None:
    assert not train_trees(random_pools(60, useful=0.0), "ndcg@5", folds=3, options=OPTIONS).clear


def test_training_is_reproducible_and_its_default_is_that_of_the_search_for_weights() -> None:
    pools = random_pools(40)
    first, second = (fit_trees(pools, OPTIONS)[0] for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)
    expected = tune_weights(pools, "ndcg@10", folds=2).tuning.values[0]
    np.testing.assert_allclose(values_of_default(pools, "ndcg@10"), expected, atol=1e-9)


def test_without_trees_the_ranking_is_blends() -> None:
    pools = random_pools(40)
    trees, _ = fit_trees(pools, replace(OPTIONS, least=100_000))
    np.testing.assert_allclose(values_of_trees(pools, trees, 1.0, "map"), values_of_default(pools, "map"), atol=1e-9)


def test_training_without_relevant_documents_is_refused() -> None:
    pools = random_pools(5)
    nothing = tuple(replace(pool, grades=np.zeros_like(pool.grades)) for pool in pools.pools)
    with pytest.raises(InvalidRequest, match="nothing to learn from"):
        fit_trees(replace(pools, pools=nothing), OPTIONS)


def test_a_numeric_field_that_tells_is_learned_and_one_that_does_not_gains_nothing_by_it() -> None:
    pools = random_pools(120, useful=0.0)
    random = np.random.default_rng(7)
    told = tuple(
        replace(
            pool,
            numbers={
                "stars, given": np.where(random.random(len(pool.grades)) < 0.2, np.nan, pool.grades + 10.0),
                "noise": random.standard_normal(len(pool.grades)),
            },
        )
        for pool in pools.pools
    )
    fields = (NumericField("stars, given"), NumericField("noise", 0.0))
    found = train_trees(replace(pools, pools=told), "ndcg@5", folds=4, fields=fields, options=OPTIONS)
    assert found.clear
    assert found.trees.problem(6) is None
    assert max(found.gains, key=lambda name: found.gains[name]) == "field stars, given"
    assert set(found.gains) == {*pools.signals, "field stars, given", "field noise"}

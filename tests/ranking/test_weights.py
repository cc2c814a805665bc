"""Weights found on signals that were scored once: what they reach is what blend reaches with them."""

import json
from math import comb
from pathlib import Path

import numpy as np
import pytest

from es_ttc.encoders import load_encoder
from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.methods import resolve_one
from es_ttc.lab.evaluation.metrics import score_by
from es_ttc.lab.evaluation.plan import EvaluationPlan, open_searcher
from es_ttc.lab.evaluation.rankings import silent
from es_ttc.lab.ranking.pools import collect, signal_names
from es_ttc.lab.ranking.weights import (
    by_default_weights,
    measure_weights,
    normalised,
    tune_weights,
    values_of_weights,
    weight_grid,
)
from es_ttc.rescorers.blend.normalise import Normalisation
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS
from tests.ranking.pools import random_pools

TEXTS = (
    "Honey bees live in hives.",
    "A beekeeper takes honey from bees.",
    "The night train to Rome.",
    "Hash tables map keys.",
    "A train of thought about bees and hives.",
    "Keys of a hive.",
)
QUERIES = {"q1": "insects that make honey in hives", "q2": "sleeper rail journey", "q3": "keys of a hash table"}
QRELS = {"q1": {"d0": 2, "d1": 1, "d4": 1}, "q2": {"d2": 1}, "q3": {"d3": 1, "d5": 0, "gone": 1}}
BEES = Collection(
    "bees", "train", tuple(Document(f"d{place}", "", text) for place, text in enumerate(TEXTS)), QUERIES, QRELS
)


@pytest.mark.parametrize("signals", [2, 3, 4, 5])
def test_the_grid_holds_every_share_once_and_equal_ones_first(signals: int) -> None:
    grid = weight_grid(signals)
    np.testing.assert_allclose(grid.sum(axis=1), 1)
    np.testing.assert_allclose(grid[0], 1 / signals)
    for place, row in enumerate(grid[1 : signals + 1]):
        assert row[place] == 0
        np.testing.assert_allclose(np.delete(row, place), 1 / (signals - 1))
    assert len(np.unique(grid.round(9), axis=0)) == len(grid)
    parts = round(1 / np.diff(np.unique(grid[signals + 1 :].round(9))).max())
    assert len(grid) >= comb(parts + signals - 1, signals - 1)


def test_the_useful_signal_is_found_and_its_worth_is_shown() -> None:
    found = tune_weights(random_pools(60), "ndcg@5", folds=5)
    weights = found.tuning.best.params.model_dump()["signals"]
    assert max(weights, key=weights.get) == "late_interaction"
    assert found.clear
    worth = {one.signal: one for one in found.worth}
    assert worth["late_interaction"].refitted.interval.high < 0
    assert worth["late_interaction"].equal.interval.high < 0
    assert worth["dense"].equal.delta > 0


def test_fewer_signals_are_compared_with_the_default_of_all() -> None:
    pools = random_pools(60)
    found = tune_weights(pools, "ndcg@5", folds=5, names=("lexical", "dense"))
    every = tune_weights(pools, "ndcg@5", folds=5)
    np.testing.assert_array_equal(found.tuning.values[0], every.tuning.values[0])
    assert found.tuning.best.params.model_dump()["signals"] is None  # no weights of the two are as good as the default
    assert found.tuning.against_default.delta <= 0 < every.tuning.against_default.delta
    assert [one.signal for one in found.worth] == ["lexical", "dense"]


def test_noise_gains_nothing_clear() -> None:
    assert not tune_weights(random_pools(60, useful=0.0), "ndcg@5", folds=5).clear


def test_signals_are_named() -> None:
    assert signal_names(None) == DEFAULT_SIGNALS
    assert signal_names(" sentences, lexical") == ("lexical", "sentences")
    with pytest.raises(InvalidRequest, match=r"\[lexcal\].*\[lexical\]"):
        signal_names("lexcal,dense")
    with pytest.raises(InvalidRequest, match="fewer than two"):
        signal_names("dense,dense")


@pytest.mark.slow
@pytest.mark.parametrize("normalise", ["z", "minmax", "rank"])
def test_values_are_those_of_rankings_by_blend(tmp_path: Path, normalise: Normalisation) -> None:
    encoder = load_encoder("minilm@onnx", cache_dir=tmp_path)
    pools = collect(BEES, encoder, window=3)
    grid = np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.1, 0.4, 0.0]])
    given = [{}, *({"signals": dict(zip(DEFAULT_SIGNALS, row.tolist(), strict=True))} for row in grid)]
    methods = tuple(resolve_one("blend", {**one, "normalise": normalise}) for one in given)
    signals = normalised(pools, normalise)
    for metric in ("ndcg@10", "map"):
        found = np.concatenate(
            [
                measure_weights(pools, metric)(by_default_weights(pools, signals))[None],
                values_of_weights(pools, signals, grid, metric),
            ]
        )
        with open_searcher(EvaluationPlan(methods, first_pass="bm25", window=3), BEES, encoder, silent) as (
            searcher,
            _,
            _,
        ):
            for values, method in zip(found, methods, strict=True):
                expected = score_by(metric, BEES.qrels, searcher.rank(method).rankings)
                np.testing.assert_allclose(values, expected, atol=1e-6, err_msg=json.dumps(method.params.model_dump()))

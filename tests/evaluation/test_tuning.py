"""Choosing parameters: what is tried, what wins, and that a fold never has a say in how it is answered."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.datasets import Collection, Document
from es_ttc.lab.evaluation.memory import MemorySearcher
from es_ttc.lab.evaluation.methods import RETRIEVAL, EvaluatedMethod, resolve_one, retrieval
from es_ttc.lab.evaluation.tuning import best_candidate, choose, fold_of, grid_candidates, tune_method
from es_ttc.rescorers import registry
from es_ttc.rescorers.registry import parse_params

GRID = {"l1": [0.1, 0.2], "l2": [0.0, 0.1, 1.0]}


def given_params(methods: Sequence[EvaluatedMethod]) -> list[dict[str, Any]]:
    return [method.params.model_dump(exclude_unset=True, by_alias=True) for method in methods]


def test_the_defaults_come_first_and_each_combination_once() -> None:
    methods = grid_candidates("nnn", grid=GRID)
    assert given_params(methods)[0] == {}
    assert len(methods) == 6  # l1 .2 and l2 .1 are the defaults
    assert given_params(grid_candidates("nnn", {"l2": 0.0}, {"l1": [0.3]})) == [{"l2": 0.0}, {"l1": 0.3, "l2": 0.0}]
    assert {"lambda": 0.5} in given_params(grid_candidates("mmr"))
    only_l1 = given_params(grid_candidates("nnn", {"l2": 0.0}))
    assert all(params["l2"] == 0.0 for params in only_l1)


@pytest.mark.parametrize("name", [*RETRIEVAL, *registry.names()])
def test_every_declared_grid_fits_its_method(name: str) -> None:
    method = resolve_one(name)
    for tried in method.params.tried():
        resolve_one(name, tried)


def test_the_greatest_mean_wins_and_of_equal_ones_the_first() -> None:
    assert best_candidate(np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])) == 0
    assert best_candidate(np.array([[0.1, 0.2], [0.3, 0.1], [0.3, 0.0]])) == 1
    assert best_candidate(np.array([[0.1, 0.1, 0.1], [0.3, 0.0, 0.0]])) == 0  # equal but for rounding


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(4, 30), st.integers(0, 1000))
def test_a_query_never_chooses_how_it_is_answered(folds: int, queries: int, seed: int) -> None:
    folds = min(folds, queries)
    random = np.random.default_rng(seed)
    values = random.random((4, queries))
    methods = grid_candidates("nnn", grid={"l1": [0.01, 0.02, 0.03]})
    found = choose("comp@5", methods, values, folds=folds, seed=seed)
    fold = fold_of(queries, folds, seed)
    assert np.ptp(np.bincount(fold, minlength=folds)) <= 1
    for query in range(queries):
        others = values[:, fold != fold[query]]
        assert found.reached[query] == values[int(np.argmax(others.mean(axis=1))), query]
        changed = values.copy()
        changed[:, query] = random.random(4)
        again = choose("comp@5", methods, changed, folds=folds, seed=seed)
        assert again.by_fold[fold[query]] == found.by_fold[fold[query]]
    assert found.against_default.delta == pytest.approx(float((found.reached - values[0]).mean()))


def test_a_better_value_is_found_on_a_collections_queries() -> None:
    documents = tuple(Document(f"d{n}", "", "apple " * (n + 1) + "pear " * 30) for n in range(6))
    collection = Collection("fruit", "train", documents, {"a": "apple", "b": "pear"}, {"a": {"d5": 1}, "b": {"d0": 1}})
    texts = [document.text for document in documents]
    searcher = MemorySearcher(collection, texts, retrieval(()), window=6)
    seen: list[tuple[int, int]] = []
    methods = grid_candidates("bm25", {"b": 0.0}, {"k1": [0.0, 5.0]})
    found = tune_method(
        collection, methods, searcher, "mrr", progress=lambda _, done, total: seen.append((done, total))
    )
    assert seen[-1] == (6, 6)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert found.values.shape == (3, 2)
    assert found.values[found.chosen].mean() == found.values.mean(axis=1).max()
    np.testing.assert_array_equal(found.reached, found.values[found.chosen])
    with pytest.raises(InvalidRequest, match=r"\[folds\] is 3: 2 queries"):
        tune_method(collection, methods, searcher, "mrr", folds=3)
    with pytest.raises(InvalidRequest, match=r"unknown metric \[mr\]"):
        tune_method(collection, methods, searcher, "mr")


def test_parameters_of_a_grid_are_those_of_a_request() -> None:
    rescorer = registry.load("mmr")
    for params in given_params(grid_candidates("mmr")):
        parse_params(rescorer, params)

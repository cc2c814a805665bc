"""Metrics against formulas written out by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.errors import InvalidRequest
from es_ttc.lab.evaluation.metrics import (
    CUTOFFS,
    OF_SETS,
    complete,
    headline_metrics,
    intra_list_similarity,
    metric_names,
    score,
    score_by,
)
from es_ttc.vectors.tokens import Float32
from tests.rescorers.windows import unit_rows

GRADES = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 3), min_size=1)
RANKING = st.permutations("abcdefghijkl").flatmap(lambda docs: st.integers(0, 12).map(lambda n: docs[:n]))


def gain(grades: dict[str, int], ranking: Sequence[str], k: int) -> float:
    return sum(grades.get(doc, 0) / math.log2(rank + 1) for rank, doc in enumerate(ranking[:k], 1))


def ndcg(grades: dict[str, int], ranking: Sequence[str], k: int) -> float:
    ideal = gain(grades, sorted(grades, key=lambda doc: -grades[doc]), k)
    return gain(grades, ranking, k) / ideal if ideal else 0.0


def average_precision(relevant: set[str], ranking: Sequence[str]) -> float:
    hits = [rank for rank, doc in enumerate(ranking, 1) if doc in relevant]
    return sum(i / rank for i, rank in enumerate(hits, 1)) / len(relevant) if relevant else 0.0


def reciprocal_rank(relevant: set[str], ranking: Sequence[str]) -> float:
    return next((1 / rank for rank, doc in enumerate(ranking, 1) if doc in relevant), 0.0)


@given(qrels=st.lists(GRADES, min_size=1, max_size=4), rankings=st.lists(RANKING, min_size=4, max_size=4))
def test_every_metric_equals_its_formula(qrels: list[dict[str, int]], rankings: list[list[str]]) -> None:
    judged = {f"query {i}": grades for i, grades in enumerate(qrels)}
    run = dict(zip(judged, rankings, strict=False))
    scores = score(judged, run, k=4)
    assert scores.queries == tuple(judged)
    for i, (query, grades) in enumerate(judged.items()):
        relevant = {doc for doc, grade in grades.items() if grade > 0}
        found = [len(relevant & set(run[query][:k])) for k in (4, *CUTOFFS)]
        expected = {"map": average_precision(relevant, run[query]), "mrr": reciprocal_rank(relevant, run[query])}
        for k, n in zip((4, *CUTOFFS), found, strict=True):
            expected[f"ndcg@{k}"] = ndcg(grades, run[query], k)
            expected[f"recall@{k}"] = n / len(relevant) if relevant else 0.0
            expected[f"success@{k}"] = float(n > 0)
            expected[f"comp@{k}"] = float(0 < len(relevant) == n)
        for k in (3, 4, 5, 10):
            top = run[query][:k]
            expected[f"unjudged@{k}"] = sum(document not in grades for document in top) / max(1, len(top))
        assert set(expected) == set(scores.values) == set(metric_names(4))
        for name, value in expected.items():
            assert scores.values[name][i] == pytest.approx(value, abs=1e-9), name


def test_the_rank_is_the_place_in_the_ranking_whatever_the_ids() -> None:
    # trec_eval breaks ties by descending id: with equal scores it would put z before a.
    for first, second in (("a", "z"), ("z", "a")):
        assert score({"q": {first: 1}}, {"q": [first, second]}).mean("mrr") == 1.0
        assert score({"q": {first: 1}}, {"q": [second, first]}).mean("mrr") == 0.5


def test_long_rankings_keep_their_order() -> None:
    ranking = [f"d{i:05}" for i in range(20_000)]
    assert score({"q": {ranking[-1]: 1}}, {"q": ranking}).mean("mrr") == pytest.approx(1 / 20_000)


def test_a_query_without_a_result_counts_as_zero() -> None:
    scores = score({"found": {"a": 1}, "empty": {"a": 1}, "absent": {"a": 1}}, {"found": ["a"], "empty": []})
    assert scores.mean("ndcg@10") == pytest.approx(1 / 3)
    assert score({"q": {"a": 1}}, {}).means() == dict.fromkeys(metric_names(), 0.0)


def test_only_judged_queries_count() -> None:
    assert score({"q": {"a": 1}}, {"q": ["a"], "other": ["b"]}).queries == ("q",)


def test_unjudged_and_irrelevant_documents_take_a_place() -> None:
    assert score({"q": {"a": 1, "b": 0}}, {"q": ["b", "x", "a"]}).mean("mrr") == pytest.approx(1 / 3)


def test_a_ranking_with_a_document_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="query \\[q 1\\] names a document twice"):
        score({"q 1": {"a": 1}}, {"q 1": ["a", "b", "a"]})


def test_a_cutoff_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k .*0"):
        score({"q": {"a": 1}}, {"q": ["a"]}, k=0)


def test_complete_needs_every_relevant_document() -> None:
    judged = {"a": 1, "b": 2, "c": 0}
    assert complete(judged, ["x", "b", "a"], 3)
    assert not complete(judged, ["x", "b", "a"], 2)
    assert not complete({"c": 0}, ["c"], 1)


def test_headline_metrics_are_computed() -> None:
    for k in (1, 7, 10, 100):
        assert set(headline_metrics(k)) <= set(metric_names(k))


def novelty(aspects: dict[str, dict[str, int]], ranking: Sequence[str], k: int) -> float:
    """alpha-DCG: the n-th relevant document on an aspect is worth half of the one before."""
    gain, seen = 0.0, dict.fromkeys(aspects, 0)
    for rank, document in enumerate(ranking[:k], 1):
        for aspect, grades in aspects.items():
            if grades.get(document, 0) > 0:
                gain += 0.5 ** seen[aspect] / math.log2(rank + 1)
                seen[aspect] += 1
    return gain


def most_novel(aspects: dict[str, dict[str, int]], k: int) -> float:
    """The greedy ideal: the next document is one of greatest gain."""
    left = sorted({document for grades in aspects.values() for document in grades})
    ideal: list[str] = []
    while left and len(ideal) < k:
        best = max(left, key=lambda one: novelty(aspects, [*ideal, one], k))
        left.remove(best)
        ideal.append(best)
    return novelty(aspects, ideal, k)


@given(aspects=st.dictionaries(st.sampled_from(["price", "taste of it"]), GRADES, min_size=1), ranking=RANKING)
def test_alpha_ndcg_is_its_formula(aspects: dict[str, dict[str, int]], ranking: list[str]) -> None:
    qrels = {"a query": {"a": 1}, "b": {"b": 1}}
    scores = score(qrels, {"a query": ranking, "b": ["b"]}, k=4, aspects={"a query": aspects})
    for k in (4, *OF_SETS):
        ideal = most_novel(aspects, k)
        if len(aspects) == 1 or ideal == 0:  # of several aspects more than one greedy ideal may be
            expected = novelty(aspects, ranking, k) / ideal if ideal else 0.0
            assert scores.values[f"alpha-ndcg@{k}"] == pytest.approx([expected, 0.0], abs=1e-6)
        assert 0 <= scores.values[f"alpha-ndcg@{k}"][0] <= 1 + 1e-9
    assert tuple(scores.values) == metric_names(4, aspects=True)


def test_a_second_aspect_is_worth_more_than_a_second_document_on_the_first() -> None:
    aspects = {"q": {"price": {"a": 1, "b": 1}, "taste": {"c": 1}}}
    values = [
        score({"q": {"a": 1}}, {"q": ranking}, aspects=aspects).mean("alpha-ndcg@3")
        for ranking in (["a", "c", "b"], ["a", "b", "c"], ["a", "b"])
    ]
    assert values[0] == pytest.approx(1)
    assert values[0] > values[1] > values[2]
    assert values[1] == pytest.approx((1 + 0.5 / math.log2(3) + 0.5) / (1 + 1 / math.log2(3) + 0.25))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_intra_list_similarity_is_the_mean_of_all_pairs(n: int) -> None:
    rows = unit_rows(np.random.default_rng(n), n, 5)
    pairs = [float(rows[i] @ rows[j]) for i in range(n) for j in range(i)]
    assert intra_list_similarity(rows) == pytest.approx(np.mean(pairs) if pairs else 0.0, abs=1e-6)


def test_similarity_of_the_top_k_where_vectors_are_at_hand() -> None:
    vectors: dict[str, Float32] = {
        "a": np.array([1, 0], np.float32),
        "b": np.array([1, 0], np.float32),
        "c": np.array([0, 1], np.float32),
    }
    scores = score({"q": {"a": 1}, "r": {"a": 1}}, {"q": ["a", "b", "gone", "c"]}, k=2, vectors=vectors)
    assert scores.values["ils@2"] == pytest.approx([1, 0])
    assert scores.values["ils@3"] == pytest.approx([1, 0])
    assert scores.values["ils@10"] == pytest.approx([1 / 3, 0])
    assert tuple(scores.values) == metric_names(2, vectors=True)


def test_documents_that_nobody_has_judged_are_counted() -> None:
    scores = score({"q": {"a": 1, "b": 0}, "r": {"a": 1}, "s": {"a": 1}}, {"q": ["b", "x", "a", "y"], "r": ["a"]}, k=2)
    assert scores.values["unjudged@2"] == pytest.approx([1 / 2, 0, 0])
    assert scores.values["unjudged@3"] == pytest.approx([1 / 3, 0, 0])


@settings(max_examples=20)
@given(qrels=st.lists(GRADES, min_size=1, max_size=3), ranking=RANKING)
def test_one_metric_alone_is_that_metric(qrels: list[dict[str, int]], ranking: list[str]) -> None:
    judged = {str(place): grades for place, grades in enumerate(qrels)}
    run = {"0": ranking}
    together = score(judged, run, k=7)
    for name in ("ndcg@7", "recall@3", "success@1", "comp@5", "map", "mrr"):
        np.testing.assert_array_equal(score_by(name, judged, run), together.values[name])


@pytest.mark.parametrize("name", ["ncdg@10", "comp", "comp@", "comp@0", "comp@-1", "comp@five", "map@10", "ils@5", ""])
def test_score_by_an_unknown_metric_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown metric \[.*\]: take one of ndcg@k, recall@k"):
        score_by(name, {"q": {"a": 1}}, {})

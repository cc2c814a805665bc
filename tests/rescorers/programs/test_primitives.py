from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_ttc.rescorers.programs.primitives import anchors, feedback, fusion
from es_ttc.rescorers.programs.primitives.discriminant import fisher, rank_stability
from es_ttc.rescorers.programs.primitives.lexical import RARE, LexicalIndex, words
from es_ttc.rescorers.programs.primitives.matching import LEAST, best_chunk, max_sim, top_mean_sim
from es_ttc.rescorers.programs.primitives.standardise import along_documents, along_queries
from es_ttc.rescorers.programs.primitives.vectors import debias, finite, normalise
from es_ttc.vectors.moments import Moments
from es_ttc.vectors.tokens import Float32
from tests.rescorers.windows import unit_rows

# Few different values, so that ties are common.
scores = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=st.sampled_from([-1, 0, 0.25, 0.5, 1])
)
seeds = st.integers(0, 2**32 - 1)


def literal_ranks(row: list[float]) -> list[int]:
    return [1 + sum(other > own for other in row) for own in row]


@given(scores)
def test_a_rank_is_one_more_than_the_number_of_greater_scores(matrix: Float32) -> None:
    assert fusion.ranks(matrix).tolist() == [literal_ranks(row) for row in matrix.tolist()]


def test_rounding_parts_no_equal_documents_and_nan_ranks_last() -> None:
    assert fusion.ranks(np.array([[0.5, 0.5 + 1e-8, np.nan]], np.float32)).tolist() == [[1, 1, 3]]


@given(scores, seeds)
def test_fusion_adds_reciprocal_ranks_in_any_order_of_documents(matrix: Float32, seed: int) -> None:
    other = np.random.default_rng(seed).permuted(matrix, axis=1)
    expected = [
        [1 / a + 1 / b for a, b in zip(literal_ranks(x), literal_ranks(y), strict=True)]
        for x, y in zip(matrix.tolist(), other.tolist(), strict=True)
    ]
    fused = fusion.reciprocal_rank_fusion([matrix, other])
    np.testing.assert_allclose(fused, expected, rtol=1e-6)
    order = np.random.default_rng(seed).permutation(matrix.shape[1])
    np.testing.assert_array_equal(fusion.reciprocal_rank_fusion([matrix[:, order], other[:, order]]), fused[:, order])


@given(seeds, st.integers(1, 6), st.integers(2, 9))
def test_z_scores_along_documents_have_mean_0_and_deviation_1(seed: int, queries: int, documents: int) -> None:
    standard = along_documents(np.random.default_rng(seed).standard_normal((queries, documents)).astype(np.float32))
    np.testing.assert_allclose(standard.mean(axis=1), 0, atol=1e-3)  # rows of nearly equal scores leave rounding
    np.testing.assert_allclose(standard.std(axis=1), 1, atol=1e-3)


def test_a_row_without_deviation_has_no_z_score() -> None:
    assert not along_documents(np.full((2, 3), 0.7, np.float32)).any()
    assert along_documents(np.zeros((2, 0), np.float32)).shape == (2, 0)


@given(seeds, st.integers(2, 12), st.integers(1, 5))
def test_moments_give_each_documents_statistics_over_the_sample(seed: int, size: int, documents: int) -> None:
    random = np.random.default_rng(seed)
    sample, vectors, queries = (unit_rows(random, rows, 6) for rows in (size, documents, 3))
    similarities = sample.astype(np.float64) @ vectors.T.astype(np.float64)
    mean, deviation = Moments.of(sample).similarities(vectors)
    np.testing.assert_allclose(mean, similarities.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(deviation, similarities.std(axis=0), atol=1e-4)
    expected = (queries @ vectors.T - similarities.mean(axis=0)) / similarities.std(axis=0)
    if deviation.min() > 0.01:
        np.testing.assert_allclose(along_queries(queries @ vectors.T, vectors, Moments.of(sample)), expected, atol=1e-3)


@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_max_and_top_mean_over_chunks(seed: int, sizes: list[int]) -> None:
    similarities = np.random.default_rng(seed).uniform(-0.9, 0.9, (2, sum(sizes))).astype(np.float32)
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.intp)
    greatest, mean = max_sim(similarities, starts), top_mean_sim(similarities, starts)
    for query, row in enumerate(similarities.tolist()):
        median = float(np.median(similarities[query])) if row else 0.0
        for document, (start, end) in enumerate(pairwise(starts)):
            own = row[start:end]
            above = [value for value in own if value > median]
            assert greatest[query, document] == (np.float32(max(own)) if own else LEAST)
            expected = float(np.mean(above)) if above else max(own, default=LEAST)
            assert mean[query, document] == pytest.approx(expected, abs=1e-5)
            [place] = best_chunk(similarities[query : query + 1], starts, np.array([document]))
            assert place == (start + own.index(max(own)) if own else -1)


@given(seeds, st.integers(1, 8))
def test_debiased_rows_are_unit_and_the_mean_direction_is_gone(seed: int, rows: int) -> None:
    vectors = unit_rows(np.random.default_rng(seed), rows, 5)
    result = debias(vectors)
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-5)
    if rows > 1:
        expected = vectors - vectors.mean(axis=0)
        np.testing.assert_allclose(np.einsum("ij,ij->i", result, expected), np.linalg.norm(expected, axis=1), rtol=1e-4)


def test_debiasing_equal_rows_leaves_them() -> None:
    equal = np.repeat(unit_rows(np.random.default_rng(1), 1, 5), 3, axis=0)
    np.testing.assert_array_equal(debias(equal), equal)


def test_rows_that_are_not_finite_become_zero() -> None:
    vectors = np.array([[1, 0], [np.nan, 1], [np.inf, 0]], np.float32)
    np.testing.assert_array_equal(finite(vectors), [[1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(normalise(np.zeros((1, 3), np.float32)), np.zeros((1, 3)))


@given(seeds)
def test_feedback_vectors_follow_their_formulas(seed: int) -> None:
    random = np.random.default_rng(seed)
    q, d = unit_rows(random, 1, 6), unit_rows(random, 8, 6)
    s = q @ d.T
    above, below = feedback.around_median(s)
    assert above.sum() == below.sum() == 4
    positive, negative = feedback.centroids(d, above), feedback.centroids(d, below)
    np.testing.assert_allclose(positive[0], d[s[0] > np.median(s)].mean(axis=0), atol=1e-6)
    moved = q[0] + positive[0] - negative[0]
    np.testing.assert_allclose(feedback.rocchio(q, positive, negative)[0], moved / np.linalg.norm(moved), atol=1e-5)
    rest = feedback.residual(q, positive)
    assert abs(float(rest[0] @ positive[0])) < 1e-6
    np.testing.assert_allclose(
        rest[0] + (q[0] @ positive[0]) / (positive[0] @ positive[0]) * positive[0], q[0], atol=1e-5
    )
    best = np.argsort(-s[0])[:3]
    weights = np.exp(s[0, best] / 0.05) / np.exp(s[0, best] / 0.05).sum()
    soft = 0.5 * q[0] + 0.5 * weights @ d[best]
    found = feedback.interpolate(q, feedback.top_centroid(d, s, 3, 0.05), 0.5)[0]
    np.testing.assert_allclose(found, soft / np.linalg.norm(soft), atol=1e-4)
    np.testing.assert_allclose(feedback.top_centroid(d, s, 3)[0], d[best].mean(axis=0), atol=1e-5)


@given(seeds, st.integers(1, 13))
def test_anchors_come_from_their_part_of_the_ranking(seed: int, documents: int) -> None:
    random = np.random.default_rng(seed)
    d = unit_rows(random, documents, 5)
    order = random.permutation(documents).astype(np.intp)
    half, quarter = -(-documents // 2), -(-documents // 4)
    upper, lower = order[:half].tolist(), order[min(half, documents - 1) :].tolist()
    top_quarter = order[:quarter].tolist()
    assert anchors.top(order, 1 / 2).tolist() == upper
    assert anchors.bottom(order, 1 / 2).tolist() == lower
    cosines = d @ d.T
    assert cosines[anchors.diverse(order, d), order[0]] == pytest.approx(min(cosines[one, order[0]] for one in upper))
    core, others = anchors.consensus(order, d)
    assert set(core.tolist()) <= set(top_quarter)
    assert len(core) >= len(top_quarter) / 2
    assert sorted([*core.tolist(), *others.tolist()]) == sorted(top_quarter + lower)
    degree = {one: sum(cosines[one, other] for other in top_quarter if other != one) for one in top_quarter}
    assert degree[anchors.central(order, d)] == pytest.approx(max(degree.values()), abs=1e-4)
    middle = d[top_quarter].mean(axis=0)
    assert d[anchors.hardest_negative(order, d)] @ middle == pytest.approx(
        max(d[one] @ middle for one in lower), abs=1e-5
    )
    before, after = (random.permutation(documents).astype(np.int32) for _ in range(2))
    risen, fallen = anchors.momentum(order, before, after)
    change = (before - after).tolist()
    assert change[risen] == max(change[one] for one in upper)
    assert change[fallen] == min(change[one] for one in lower)


@given(seeds)
def test_fisher_scores_by_the_difference_of_the_means(seed: int) -> None:
    random = np.random.default_rng(seed)
    d = unit_rows(random, 6, 4)
    direction = d[:2].mean(axis=0) - d[4:].mean(axis=0)
    found = fisher(d, d[:2].mean(axis=0, keepdims=True), d[4:].mean(axis=0, keepdims=True))
    np.testing.assert_allclose(found[0], d @ direction / np.linalg.norm(direction), atol=1e-5)


@settings(max_examples=30)
@given(st.lists(hnp.arrays(np.float32, (2, 5), elements=st.integers(0, 9)), min_size=1, max_size=5))
def test_stability_is_minus_the_variance_of_the_ranks(channels: list[Float32]) -> None:
    np.testing.assert_allclose(
        rank_stability(channels), -np.var([fusion.ranks(one) for one in channels], axis=0), atol=1e-5
    )


def test_words_of_any_script() -> None:
    assert words("The F-16, naïve_fox: 3.5") == ["the", "f", "16", "naïve", "fox", "3", "5"]
    assert words("東京タワー is") == ["東", "京", "タ", "ワ", "ー", "is"]
    assert words("Быстрая лиса") == ["быстрая", "лиса"]
    assert words("...") == []


def test_lexical_channels_by_hand() -> None:
    index = LexicalIndex(["red fox runs", "the red dog", "the cat", ""])
    idf = {"red": np.log1p(2.5 / 2.5), "fox": np.log1p(3.5 / 1.5), "zebra": np.log1p(4.5 / 0.5)}
    assert {word: index.idf(word) for word in idf} == pytest.approx(idf)
    queries = ["Red fox zebra red", "..."]
    np.testing.assert_allclose(
        index.overlap(queries), [[idf["red"] + idf["fox"], idf["red"], 0.0, 0.0], [0.0] * 4], rtol=1e-6
    )
    np.testing.assert_allclose(index.coverage(queries), [[2 / 3, 1 / 3, 0.0, 0.0], [0.0] * 4], rtol=1e-6)
    np.testing.assert_allclose(index.bigrams(queries), [[1 / 3, 0.0, 0.0, 0.0], [0.0] * 4], rtol=1e-6)
    assert RARE * 4 < 1  # so a word of one document is rare, and one of two is not
    np.testing.assert_allclose(index.rare(queries), [[idf["fox"], 0.0, 0.0, 0.0], [0.0] * 4], rtol=1e-6)

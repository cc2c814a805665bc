"""Blend and hybrid against the literal formulas, also where documents lack signals, and what a request may say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from es_ttc.rescorers import registry
from es_ttc.rescorers.base import Feature, PartialRescorer, Query, Window
from es_ttc.rescorers.blend.hybrid import HybridParams, HybridRescorer
from es_ttc.rescorers.blend.normalise import (
    NORMALISATIONS,
    NORMALISED,
    comparable,
    leading,
    min_max,
    reciprocal_ranks,
    z_scores,
    z_scores_of_words,
)
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer
from es_ttc.rescorers.blend.signals import all_signal_scores
from es_ttc.rescorers.blend.weights import DEFAULT_SIGNALS, Trust, has_few_words
from es_ttc.rescorers.dense import DenseParams, DenseRescorer
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import SpectralParams, SpectralRescorer
from es_ttc.vectors.tokens import Float32, TokenVectors
from tests.rescorers.windows import query_of, random_documents, unit_rows, window_of

blend = BlendRescorer()
hybrid = HybridRescorer()
DEFAULT = BlendParams()
DIMS = 16


def example(documents: int = 9, seed: int = 0) -> tuple[Query, Window]:
    random = np.random.default_rng(seed)
    lengths = [int(length) for length in random.integers(1, 30, documents)]
    window = replace(
        window_of(random_documents(random, lengths, DIMS)),
        pooled=unit_rows(random, documents, DIMS),
        first_pass=np.sort(random.gamma(2, 2, documents).astype(np.float32))[::-1].copy(),
    )
    return query_of(unit_rows(random, 1, DIMS), unit_rows(random, 5, DIMS)), window


def reference_signals(query: Query, window: Window) -> dict[str, Float32]:
    return {
        "lexical": window.first_pass,
        "dense": DenseRescorer().score(query, window, DenseParams()),
        "spectral": SpectralRescorer().score(query, window, SpectralParams()),
        "late_interaction": MaxSimRescorer().score(query, window, MaxSimParams(query="tokens")),
    }


def test_blend_is_the_mean_of_z_scores_with_dense_at_half() -> None:
    query, window = example()
    z = {name: stats.zscore(scores) for name, scores in reference_signals(query, window).items()}
    assert z["lexical"].max() < 4  # else its column is multiplied
    mean = (z["lexical"] + 0.5 * z["dense"] + z["spectral"] + z["late_interaction"]) / 3.5
    np.testing.assert_allclose(blend.score(query, window, DEFAULT), 1 / (1 + np.exp(-mean)), atol=1e-5)
    assert blend.summary(query, window, DEFAULT) == {"signals": [*reference_signals(query, window)]}


def test_spectral_alone_reads_the_means_of_words() -> None:
    query, window = example()
    means = unit_rows(np.random.default_rng(9), 1, DIMS)
    scored = all_signal_scores(DEFAULT.names, replace(query, word_means=means), window)
    expected = reference_signals(query, window) | {
        "spectral": SpectralRescorer().score(query_of(means), window, SpectralParams())
    }
    for name, one in scored.items():
        np.testing.assert_allclose(one.scores, expected[name], atol=1e-6)


def test_weights_are_shares() -> None:
    query, window = example()
    params = BlendParams(signals={"dense": 1, "lexical": 3, "spectral": 0})
    scores = reference_signals(query, window)
    mean = 0.75 * stats.zscore(scores["lexical"]) + 0.25 * stats.zscore(scores["dense"])
    np.testing.assert_allclose(blend.score(query, window, params), 1 / (1 + np.exp(-mean)), atol=1e-5)
    assert blend.needs(params) == {Feature.FIRST_PASS, Feature.POOLED}
    assert blend.takes(params) == frozenset()


@pytest.mark.parametrize("normalise", NORMALISATIONS)
def test_scores_are_shown_in_order_and_not_negative(normalise: Any) -> None:
    query, window = example(40, seed=3)
    params = BlendParams(normalise=normalise)
    scores = blend.score(query, window, params)
    shares = [found["signals"].values() for found in blend.detail(query, window, params)]
    totals = [sum(signal["share"] for signal in one) for one in shares]
    assert (scores >= 0).all()
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(totals))


def test_blend_leaves_out_signals_that_the_index_lacks() -> None:
    query, window = example()
    without = replace(window, tokens=None, norms=None)
    mean = np.mean([stats.zscore(reference_signals(query, window)[name]) for name in ("lexical", "dense")], axis=0)
    np.testing.assert_allclose(blend.score(query, without, DEFAULT), 1 / (1 + np.exp(-mean)), atol=1e-5)
    assert blend.summary(query, without, DEFAULT) == {
        "signals": ["lexical", "dense"],
        "missing_signals": ["spectral", "late_interaction"],
    }


def test_a_document_without_features_is_scored_by_what_it_has() -> None:
    query, window = example()
    assert window.pooled is not None
    assert window.tokens is not None
    known = np.arange(9) != 4
    holes = replace(
        window,
        pooled=np.where(known[:, np.newaxis], window.pooled, 0).astype(np.float32),
        tokens=[one if there else TokenVectors(np.zeros((0, DIMS), np.float32))
                for one, there in zip(window.tokens, known, strict=True)],
        present={Feature.POOLED: known, Feature.TOKENS: known},
    )  # fmt: skip
    scores = blend.score(query, holes, DEFAULT)
    lexical = stats.zscore(window.first_pass)[4] / 3.5  # the other three signals are at their mean
    assert scores[4] == pytest.approx(1 / (1 + np.exp(-lexical)), abs=1e-5)
    others = replace(
        window,
        ids=[one for one, there in zip(window.ids, known, strict=True) if there],
        pooled=window.pooled[known],
        tokens=[one for one, there in zip(window.tokens, known, strict=True) if there],
        first_pass=window.first_pass[known],
    )
    semantic = BlendParams(signals={"dense": 1, "spectral": 1, "late_interaction": 1})
    np.testing.assert_allclose(
        blend.score(query, holes, semantic)[known], blend.score(query, others, semantic), atol=1e-6
    )
    assert blend.summary(query, holes, DEFAULT)["without_features"] == 1
    detail = blend.detail(query, holes, DEFAULT)
    assert detail[4]["signals"]["dense"] == {"score": None, "share": 0.0}
    assert "scale" in detail[3]
    assert "scale" not in detail[4]
    for places in ([7, 4, 0], [4], []):
        assert blend.detail_of(query, holes, DEFAULT, places) == [detail[place] for place in places]


def test_a_constant_signal_says_nothing() -> None:
    query, window = example()
    flat = replace(window, first_pass=np.full(9, 2.5, np.float32))
    both = BlendParams(signals={"lexical": 1, "dense": 1})
    np.testing.assert_array_equal(
        np.argsort(blend.score(query, flat, both)), np.argsort(reference_signals(query, window)["dense"])
    )


def test_words_count_less_where_their_scores_hardly_differ() -> None:
    query, window = example()
    scores = np.linspace(10.4, 10, 9).astype(np.float32)  # of a word that every document has
    close = replace(window, first_pass=scores)
    weight = scores.std() / scores.mean() / 0.2
    assert 0.05 < weight < 0.1
    parts = reference_signals(query, close)
    z = {name: stats.zscore(found) for name, found in parts.items()}
    mean = (weight * z["lexical"] + 0.5 * z["dense"] + z["spectral"] + z["late_interaction"]) / (2.5 + weight)
    np.testing.assert_allclose(blend.score(query, close, DEFAULT), 1 / (1 + np.exp(-mean)), atol=1e-5)
    as_given = BlendParams(signals=dict.fromkeys(parts, 1))
    mean = sum(z.values()) / 4
    np.testing.assert_allclose(blend.score(query, close, as_given), 1 / (1 + np.exp(-mean)), atol=1e-5)
    joined = replace(close, present={Feature.FIRST_PASS: np.arange(9) < 5})
    assert not np.allclose(blend.score(query, joined, DEFAULT), blend.score(query, close, DEFAULT))


def test_vectors_count_less_where_they_were_made_from_a_part_of_the_texts() -> None:
    query, window = example()
    assert window.tokens is not None
    shares = [0.1, 0.3] + [1.0] * 7
    cut = replace(window, tokens=[replace(one, read=share) for one, share in zip(window.tokens, shares, strict=True)])
    weight = np.sqrt(np.mean(shares))
    z = {name: stats.zscore(found) for name, found in reference_signals(query, window).items()}
    semantic = weight * (0.5 * z["dense"] + z["spectral"] + z["late_interaction"])
    mean = (z["lexical"] + semantic) / (1 + 2.5 * weight)
    np.testing.assert_allclose(blend.score(query, cut, DEFAULT), 1 / (1 + np.exp(-mean)), atol=1e-5)
    assert blend.summary(query, cut, DEFAULT)["encoded_share"] == round(float(np.mean(shares)), 4)
    given = BlendParams(signals={"lexical": 1, "spectral": 1})
    np.testing.assert_array_equal(blend.score(query, cut, given), blend.score(query, window, given))
    assert "read" not in blend.summary(query, cut, given)


def test_blend_of_one_document_is_average() -> None:
    query, window = example(1)
    np.testing.assert_array_equal(blend.score(query, window, DEFAULT), [0.5])


@given(st.integers(2, 60), st.integers(0, 2**32 - 1), st.floats(-30, 30))
def test_the_only_document_that_matches_is_first_under_any_vectors(count: int, seed: int, power: float) -> None:
    random = np.random.default_rng(seed)
    heavy = np.sign(random.normal(size=(3, count))) * random.random((3, count)) ** power  # also with one far outlier
    worst = np.full((3, count), -1.0)  # the match is far below in every signal, one other far above
    worst[:, 0], worst[:, 1] = -1e3, 1e3
    for vectors in (heavy, worst):
        words = np.zeros(count, np.float32)
        words[0] = random.random() * 30 + 1e-3
        known = np.ones(count, np.bool_)
        matrix = np.vstack([words, np.clip(vectors, -1e6, 1e6)]).astype(np.float32)
        columns = [
            comparable(name, row, known, "z", few_words=False)
            for name, row in zip(DEFAULT_SIGNALS, matrix, strict=True)
        ]
        weights = Trust(1.0, 1.0).weights(DEFAULT_SIGNALS)
        total = sum(weights[name] * column for name, column in zip(DEFAULT_SIGNALS, columns, strict=True))
        assert np.argmax(total) == 0


@given(st.lists(st.integers(0, 5_000), min_size=2, max_size=40), st.integers(-3, 6), st.booleans())
def test_the_scale_of_the_words_scores_changes_nothing(hundredths: list[int], power: int, few_words: bool) -> None:
    words = np.array(hundredths, np.float32) / np.float32(100)
    scaled = words * np.float32(2.0**power)  # without rounding
    np.testing.assert_allclose(
        z_scores_of_words(scaled, few_words=few_words), z_scores_of_words(words, few_words=few_words), atol=1e-5
    )


def test_equal_scores_have_z_scores_of_0_also_where_their_mean_is_rounded() -> None:
    equal = np.full(3, 15 * 91.03250347252661, np.float32)
    assert not z_scores(equal, np.ones(3, np.bool_)).any()


@pytest.mark.parametrize(
    ("scores", "few_words", "leads"),
    [
        ([5, 0, 0, 0], False, [1, 0, 0, 0]),  # the only match, in a query of any length
        ([5, 4, 1, 1], True, [1, 1, 0, 0]),  # the greatest drop is below the second
        ([5, 4, 1, 1], False, [0, 0, 0, 0]),
        ([8, 7.4, 7, 6.9], True, [0.5, 0, 0, 0]),  # a drop of .075
        ([5, 4.9, 4.8, 4.7], True, [0, 0, 0, 0]),
        ([0, 0, 0], True, [0, 0, 0]),
        ([3], True, [0]),
    ],
)
def test_documents_that_words_single_out_lead(scores: list[float], few_words: bool, leads: list[float]) -> None:
    np.testing.assert_allclose(leading(np.array(scores, np.float32), few_words=few_words), leads, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "few"),
    [("KET-12345", True), ("garlic press KET-12345", True), ("how do I press garlic", False), ("", False),
     ("東京", True), ("東京都庁舎", False)],
)  # fmt: skip
def test_a_query_of_three_words_at_most_has_few_words(text: str, few: bool) -> None:
    assert has_few_words(text) is few


scores_and_known = st.integers(1, 30).flatmap(
    lambda count: st.tuples(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=count, max_size=count),
    )
)


@given(given_scores=scores_and_known, name=st.sampled_from(NORMALISATIONS))
def test_normalising_keeps_order_and_fills_with_the_mean(
    given_scores: tuple[list[float], list[bool]], name: Any
) -> None:
    scores, known = np.array(given_scores[0], np.float32), np.array(given_scores[1])
    found = NORMALISED[name](scores, known)
    assert np.isfinite(found).all()
    assert found.shape == scores.shape
    if known.any():
        order = np.argsort(scores[known], kind="stable")
        assert (np.diff(found[known][order]) >= -1e-6).all()
        assert found[~known] == pytest.approx(found[known].mean(), abs=1e-4)


def test_z_scores_min_max_and_reciprocal_ranks_equal_their_formulas() -> None:
    scores, all_known = np.array([3, 1, 2], np.float32), np.ones(3, np.bool_)
    np.testing.assert_allclose(z_scores(scores, all_known), stats.zscore(scores), atol=1e-6)
    np.testing.assert_allclose(min_max(scores, all_known), [1, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(reciprocal_ranks(scores, all_known), [1 / 61, 1 / 63, 1 / 62], atol=1e-8)


def test_hybrid_is_reciprocal_rank_fusion_of_two_lists() -> None:
    query, window = example(6)
    found = np.array([True, True, True, True, False, False])
    first_pass = np.where(found, window.first_pass, 0).astype(np.float32)
    joined = replace(window, first_pass=first_pass, present={Feature.FIRST_PASS: found})
    dense = reference_signals(query, window)["dense"]
    nearest = np.argsort(-dense)
    params = HybridParams(rank_window_size=4)
    expected = np.zeros(6)
    expected[:4] += 1 / (60 + np.arange(1, 5))
    expected[nearest[:4]] += 1 / (60 + np.arange(1, 5))
    np.testing.assert_allclose(hybrid.score(query, joined, params), expected, atol=1e-7)


@pytest.mark.parametrize("fusion", ["rrf", "weighted"])
def test_hybrid_puts_the_only_document_that_matches_first(fusion: Any) -> None:
    query, window = example(40, seed=5)
    only = np.zeros(40, np.float32)
    only[int(np.argmin(window.pooled @ query.vectors[0]))] = 3  # farthest by vector
    params = HybridParams(fusion=fusion, lexical_weight=0.1)
    assert np.argmax(hybrid.score(query, replace(window, first_pass=only), params)) == np.argmax(only)


def test_hybrid_by_weights() -> None:
    query, window = example(6)
    dense = reference_signals(query, window)["dense"]
    params = HybridParams(fusion="weighted", lexical_weight=0.25)
    expected = 0.25 * _to_one(window.first_pass) + 0.75 * _to_one(dense)
    np.testing.assert_allclose(hybrid.score(query, window, params), expected, atol=1e-6)
    assert list(hybrid.detail(query, window, params)[0]["signals"]) == ["lexical", "dense"]


def _to_one(scores: Float32) -> Float32:
    result: Float32 = (scores - scores.min()) / np.ptp(scores)
    return result


def test_blend_and_hybrid_are_registered() -> None:
    for name in ("blend", "hybrid"):
        assert isinstance(registry.load(name), PartialRescorer)
    assert not isinstance(registry.load("dense"), PartialRescorer)

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.base import Feature, Query, Window
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Codec, Float32
from tests.rescorers import reference
from tests.rescorers.windows import query_of, random_documents, unit_rows, window_of

CODECS: tuple[Codec, ...] = ("float32", "float16", "int8")
spectral = SpectralRescorer()


def score(query: Query, window: Window, /, **params: Any) -> Float32:
    return spectral.score(query, window, SpectralParams(**params))


@st.composite
def aggregations(draw: st.DrawFn) -> dict[str, Any]:
    how = draw(st.sampled_from(["max", "top_mean", "percentile"]))
    if how == "top_mean":
        return {"aggregation": how, "top_m": draw(st.integers(1, 40))}
    if how == "percentile":
        return {"aggregation": how, "percentile": draw(st.floats(0, 100))}
    return {"aggregation": how}


@st.composite
def pools(draw: st.DrawFn, scales: int) -> dict[str, Any]:
    pool = draw(st.sampled_from(["max", "mean", "softmax"]))
    if pool == "softmax":
        return {"pool": pool, "temperature": draw(st.floats(0.001, 1000))}
    if pool == "mean" and draw(st.booleans()):
        weights = st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.0]), min_size=scales, max_size=scales)
        return {"pool": pool, "scale_weights": draw(weights.filter(any))}
    return {"pool": pool}


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.one_of(st.integers(0, 12), st.integers(0, 300)), max_size=8),
    scales=st.lists(st.one_of(st.sampled_from([*DEFAULT_SCALES, math.inf]), st.floats(1, 500)), min_size=1, max_size=6),
    codec=st.sampled_from(CODECS),
    roles=st.sampled_from(["max", "mean"]),
    queries=st.integers(1, 3),
    stored=st.one_of(st.none(), st.sets(st.sampled_from([*DEFAULT_SCALES, math.inf]))),
    aggregation=aggregations(),
)
def test_scores_are_those_of_the_literal_method(
    seed: int,
    lengths: list[int],
    scales: list[float],
    codec: Codec,
    roles: str,
    queries: int,
    stored: set[float] | None,
    aggregation: dict[str, Any],
) -> None:
    random = np.random.default_rng(seed)
    documents = random_documents(random, lengths, 16, codec)
    vectors = unit_rows(random, queries, 16)
    window = window_of(documents, None if stored is None else sorted(stored))
    scores = score(query_of(vectors), window, scales=scales, roles=roles, **aggregation)

    how = {"how": aggregation["aggregation"], **{k: v for k, v in aggregation.items() if k != "aggregation"}}
    for tokens, found in zip(documents, scores, strict=True):
        if not len(tokens):
            assert found == -1
            continue
        by_role = [reference.spectral_score(vector, dequantise(tokens), scales, **how) for vector in vectors]
        wanted = max(by_role) if roles == "max" else sum(by_role) / len(by_role)
        assert found == pytest.approx(wanted, abs=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.one_of(st.integers(0, 12), st.integers(0, 100)), max_size=5),
    scales=st.lists(st.sampled_from([*DEFAULT_SCALES, 2.5, math.inf]), min_size=1, max_size=4, unique=True),
    codec=st.sampled_from(CODECS),
    query_tokens=st.one_of(st.none(), st.integers(0, 3), st.integers(30, 40)),
    data=st.data(),
)
def test_pools_and_query_tokens_are_those_of_the_literal_method(
    seed: int, lengths: list[int], scales: list[float], codec: Codec, query_tokens: int | None, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    documents = random_documents(random, lengths, 8, codec)
    pool, aggregation = data.draw(pools(len(scales))), data.draw(aggregations())
    query = query_of(unit_rows(random, 1, 8), unit_rows(random, query_tokens or 0, 8))
    asked = {"query": "pooled" if query_tokens is None else "tokens", "scales": scales}
    scores = score(query, window_of(documents, DEFAULT_SCALES), **asked, **pool, **aggregation)

    named = {"aggregation": "how", "scale_weights": "weights"}
    how = {named.get(name, name): value for name, value in {**pool, **aggregation}.items()}
    vectors = query.vectors if query_tokens is None else query.tokens
    assert vectors is not None
    for tokens, found in zip(documents, scores, strict=True):
        if not len(tokens):
            assert found == -1
            continue
        total = reference.spectral_of_query_tokens(vectors, dequantise(tokens), scales, **how)
        assert found == pytest.approx(total / max(len(vectors), 1), abs=1e-6)


@pytest.mark.parametrize("codec", CODECS)
def test_a_real_sized_ragged_window_equals_the_literal_method(codec: Codec) -> None:
    random = np.random.default_rng(7)
    documents = random_documents(random, [1, 2, 3, 10, 64, 255, 256, 257, 700, 1000], 96, codec)
    vector = unit_rows(random, 1, 96)
    scores = score(query_of(vector), window_of(documents, DEFAULT_SCALES), scales=[*DEFAULT_SCALES, "mean"])
    wanted = [
        reference.spectral_score(vector[0], dequantise(tokens), (*DEFAULT_SCALES, math.inf)) for tokens in documents
    ]
    np.testing.assert_allclose(scores, wanted, atol=1e-6)


def test_the_default_grid_lacks_the_mean_and_falls_below_it() -> None:
    random = np.random.default_rng(11)
    below = 0
    for _ in range(20):
        tokens = unit_rows(random, 200, 64)
        vector = tokens.mean(axis=0, keepdims=True)
        vector /= np.linalg.norm(vector)
        below += score(query_of(vector), window_of([quantise(tokens, "float32")]))[0] < 0.999
    assert below == 20


def test_a_finite_wide_scale_is_not_the_mean_but_never_below_it() -> None:
    random = np.random.default_rng(12)
    documents = random_documents(random, [30] * 50, 16)
    vector = unit_rows(random, 1, 16)
    wide = score(query_of(vector), window_of(documents), scales=[100_000])
    mean = score(query_of(vector), window_of(documents), scales=["mean"])
    assert (wide >= mean - 1e-6).all()
    assert (wide > mean + 0.01).any()


def test_the_papers_worked_example_with_its_numbers_corrected() -> None:
    rows: list[list[list[float]]] = [
        [[0.50, 0.10, 0.10, 0.10], [0.10, 0.10, 0.10, 0.50], [0.10, 0.20, 0.20, 0.10]],
        [[0.30, 0.30, 0.30, 0.30]] * 3,
        [[0.10, 0.20, 0.30, 0.40], [0.40, 0.30, 0.20, 0.10], [0.25, 0.25, 0.25, 0.25]],
    ]
    matrices = [np.array(matrix, np.float32) for matrix in rows]
    documents = [quantise(m / np.linalg.norm(m, axis=1, keepdims=True).astype(np.float32), "float32") for m in matrices]
    query = query_of(np.array([1, 0, 0, 0], np.float32))
    window = window_of(documents)
    np.testing.assert_allclose(score(query, window, scales=[1]), [0.945, 0.5, 0.730], atol=5e-4)
    np.testing.assert_allclose(score(query, window, scales=["mean"]), [0.580, 0.5, 0.5], atol=5e-4)
    np.testing.assert_allclose(score(query, window, scales=[100])[0], 0.671, atol=5e-4)


def test_repeated_content_collapses_onto_the_mean_only_where_all_rows_are_equal() -> None:
    random = np.random.default_rng(5)
    body, vector = unit_rows(random, 10, 64), unit_rows(random, 1, 64)
    equal, repeated = (quantise(np.tile(block, (30, 1)), "float32") for block in (body[:1], body))
    window = window_of([equal, repeated])
    spectral_scores, means = score(query_of(vector), window), score(query_of(vector), window, scales=["mean"])
    assert spectral_scores[0] == pytest.approx(means[0], abs=1e-6)
    assert spectral_scores[1] > means[1] + 0.05


@pytest.mark.parametrize("codec", CODECS)
def test_zero_vectors_score_zero_and_empty_documents_least(codec: Codec) -> None:
    zeros, empty = (quantise(np.zeros((rows, 4), np.float32), codec) for rows in (7, 0))
    found = score(query_of(np.array([1, 0, 0, 0], np.float32)), window_of([zeros, empty]), scales=[1, 3, "mean"])
    np.testing.assert_array_equal(found, [0, -1])


def test_tokens_that_cancel_out_score_zero_where_nothing_is_left() -> None:
    row = np.array([0.6, 0.8], np.float32)
    alternating = np.stack([row, -row] * 20)
    found = score(query_of(row), window_of([quantise(alternating, "float32")]), scales=["mean"])
    assert abs(found[0]) < 0.02


def test_an_empty_window() -> None:
    assert score(query_of(np.ones(4, np.float32)), window_of([])).shape == (0,)


def test_a_query_without_direction_scores_zero() -> None:
    documents = random_documents(np.random.default_rng(1), [5, 40], 8)
    np.testing.assert_array_equal(score(query_of(np.zeros(8, np.float32)), window_of(documents)), [0, 0])


def test_vectors_of_different_sizes_are_refused() -> None:
    documents = random_documents(np.random.default_rng(1), [5], 8)
    with pytest.raises(ValueError, match="8 components"):
        score(query_of(np.ones(4, np.float32)), window_of(documents))


def ragged_window() -> tuple[Query, Window]:
    random = np.random.default_rng(21)
    lengths = [*random.integers(0, 400, 60).tolist(), *[128] * 20, 1000, 1, 2, 3000]
    documents = [quantise(unit_rows(random, n, 32), CODECS[n % 3]) for n in lengths]
    return query_of(unit_rows(random, 2, 32)), window_of(documents, DEFAULT_SCALES)


def only(window: Window, places: list[int]) -> Window:
    assert window.tokens is not None
    assert window.norms is not None
    return Window(
        ids=[window.ids[place] for place in places],
        first_pass=window.first_pass[places],
        tokens=[window.tokens[place] for place in places],
        norms=[window.norms[place] for place in places],
    )


def test_a_documents_score_depends_on_nothing_else_in_the_window() -> None:
    query, window = ragged_window()
    whole = score(query, window)
    np.testing.assert_array_equal(score(query, window), whole)
    order = np.random.default_rng(3).permutation(len(window)).tolist()
    np.testing.assert_array_equal(score(query, only(window, order)), whole[order])
    alone = np.concatenate([score(query, only(window, [place])) for place in range(len(window))])
    np.testing.assert_array_equal(alone, whole)


@pytest.mark.parametrize("pool", [{"pool": "mean", "query": "tokens"}, {"pool": "softmax"}])
def test_a_pooled_score_depends_on_nothing_else_in_the_window_either(pool: dict[str, Any]) -> None:
    vectors, window = ragged_window()
    query = query_of(vectors.vectors, unit_rows(np.random.default_rng(2), 3, 32))
    whole = score(query, window, **pool)
    alone = np.concatenate([score(query, only(window, [place]), **pool) for place in range(0, len(window), 5)])
    np.testing.assert_array_equal(alone, whole[::5])


def test_the_pools_limits_and_what_lies_between() -> None:
    query, window = ragged_window()
    greatest, mean = score(query, window), score(query, window, pool="mean")
    np.testing.assert_allclose(score(query, window, pool="softmax", temperature=0.001), greatest, atol=1e-3)
    np.testing.assert_allclose(score(query, window, pool="softmax", temperature=1000), mean, atol=1e-3)
    between = score(query, window, pool="softmax")
    assert ((mean <= between + 1e-6) & (between <= greatest + 1e-6)).all()
    weights = [0.0] * len(DEFAULT_SCALES)
    weights[2] = 4
    only_one = score(query, window, pool="mean", scale_weights=weights)
    np.testing.assert_array_equal(only_one, score(query, window, scales=[DEFAULT_SCALES[2]]))


def test_query_tokens_at_scale_one_are_late_interaction() -> None:
    random = np.random.default_rng(13)
    query = query_of(unit_rows(random, 1, 32), unit_rows(random, 7, 32))
    window = window_of(random_documents(random, [3, 0, 50, 400], 32, "int8"))
    late = MaxSimRescorer().score(query, window, MaxSimParams(query="tokens"))
    np.testing.assert_allclose(score(query, window, query="tokens", scales=[1]), late, atol=1e-6)


def test_scores_are_float32_in_range() -> None:
    query, window = ragged_window()
    found = score(query, window, aggregation="percentile", percentile=100)
    assert found.dtype == np.float32
    assert ((found >= -1) & (found <= 1)).all()


def test_an_outlying_token_decides_the_maximum_but_not_the_mean_of_the_best() -> None:
    random = np.random.default_rng(9)
    vector = unit_rows(random, 1, 64)
    relevant = 0.5 * vector + unit_rows(random, 60, 64) * np.float32(0.9)
    relevant /= np.linalg.norm(relevant, axis=1, keepdims=True)
    outlier = unit_rows(random, 60, 64)
    outlier[30] = vector[0] * 0.9 + unit_rows(random, 1, 64)[0] * np.float32(0.3)
    outlier[30] /= np.linalg.norm(outlier[30])
    window = window_of([quantise(document.astype(np.float32), "float32") for document in (relevant, outlier)])
    strict = score(query_of(vector), window, scales=[1])
    mild = score(query_of(vector), window, scales=[1], aggregation="top_mean", top_m=10)
    assert strict[1] > strict[0]
    assert mild[1] < mild[0]


@pytest.mark.parametrize(("alpha", "at_least", "at_most"), [(0.2, 0, 8), (0.75, 20, 20)])
def test_a_planted_token_is_found_above_the_noise_floor_only(alpha: float, at_least: int, at_most: int) -> None:
    """Table II in small: by section VI-C the recall of the first 10 of 200 turns near alpha .5."""
    random = np.random.default_rng(17)
    corpus = random_documents(random, random.integers(50, 200, 200).tolist(), 64, "int8")
    found = 0
    for target in range(20):
        vector = unit_rows(random, 1, 64)
        across = unit_rows(random, 1, 64)
        across -= (across @ vector.T) * vector
        across /= np.linalg.norm(across)
        spiked = dequantise(corpus[target])
        spiked[random.integers(len(spiked))] = alpha * vector[0] + math.sqrt(1 - alpha**2) * across[0]
        documents = [*corpus[:target], quantise(spiked, "int8"), *corpus[target + 1 :]]
        scores = score(query_of(vector), window_of(documents), scales=[1])
        found += int((scores > scores[target]).sum()) < 10
    assert at_least <= found <= at_most


def test_spectral_requires_tokens_and_takes_norms_and_offsets() -> None:
    assert spectral.needs(SpectralParams()) == {Feature.TOKENS}
    assert spectral.needs(SpectralParams(query="tokens")) == {Feature.TOKENS, Feature.QUERY_TOKENS}
    assert spectral.wants == {Feature.NORMS, Feature.OFFSETS}


def test_means_of_words_stand_for_a_pooled_vector_that_is_no_mean() -> None:
    random = np.random.default_rng(0)
    window = window_of(random_documents(random, [1, 7, 40], 8))
    pooled, means = unit_rows(random, 2, 8), unit_rows(random, 2, 8)
    query, expected = Query("", pooled, word_means=means), Query("", means)
    np.testing.assert_array_equal(score(query, window), score(expected, window))
    assert spectral.detail(query, window, SpectralParams()) == spectral.detail(expected, window, SpectralParams())
    assert not np.allclose(score(query, window), score(Query("", pooled), window))

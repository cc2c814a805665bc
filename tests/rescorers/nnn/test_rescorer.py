from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.nnn.active_set import solve
from es_ttc.rescorers.nnn.dictionary import Dictionary
from es_ttc.rescorers.nnn.objective import Penalty
from es_ttc.rescorers.nnn.rescorer import NnnParams, NnnRescorer, scores
from es_ttc.vectors.tokens import Float32
from tests.rescorers.nnn.certificates import residual
from tests.rescorers.nnn.problems import KINDS, rows_of, unit
from tests.rescorers.windows import query_of

nnn = NnnRescorer()


def window_of(pooled: Float32) -> Window:
    count = len(pooled)
    ids = [f"d{place}" for place in range(count)]
    return Window(ids, np.arange(count, 0, -1, dtype=np.float32), pooled=pooled)


def score(query: Query, window: Window, **params: Any) -> Float32:
    return nnn.score(query, window, NnnParams(**params))


def detail(query: Query, window: Window, **params: Any) -> list[dict[str, Any]]:
    return nnn.detail(query, window, NnnParams(**params))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Query, Window, dict[str, Any]]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d, texts = draw(st.integers(1, 50)), draw(st.integers(1, 16)), draw(st.integers(1, 3))
    pooled = rows_of(draw(st.sampled_from(KINDS)), n, d, random).astype(np.float32)
    vectors = unit(random.standard_normal((texts, d))).astype(np.float32)
    l2 = draw(st.sampled_from([0.0, 0.1, 1.0]))
    params: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"l1": st.floats(0, 0.9), "l2": st.just(l2)}),
            st.fixed_dictionaries({"documents": st.integers(1, 10), "l2": st.just(l2)}),
        )
    )
    return query_of(vectors), window_of(pooled), params


@given(requests())
def test_coefficients_are_the_scores_and_the_rest_follows_in_first_pass_order(
    request: tuple[Query, Window, dict[str, Any]],
) -> None:
    query, window, params = request
    found, details = score(query, window, **params), detail(query, window, **params)
    assert found.shape == (len(window),)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (found > 0).all()
    coefficients = np.array([shown["coefficient"] for shown in details])
    selected = coefficients > 0
    np.testing.assert_array_equal(found[selected], coefficients[selected].astype(np.float32))
    rest = found[~selected]
    assert (np.diff(rest) < 0).all()
    if len(rest):
        assert rest[0] < (found[selected].min() if selected.any() else 1)
    np.testing.assert_array_equal(score(query, window, **params), found)


@given(requests())
def test_the_detail_adds_up(request: tuple[Query, Window, dict[str, Any]]) -> None:
    query, window, params = request
    assert window.pooled is not None
    details = detail(query, window, **params)
    orjson.dumps(details)
    mean = query.vectors.mean(axis=0, dtype=np.float64)
    coefficients = np.array([shown["coefficient"] for shown in details])
    left = residual(window.pooled, mean, coefficients)
    vectors = window.pooled.astype(np.float64)
    for place, shown in enumerate(details):
        assert shown["certified"]
        assert shown["residual_norm"] == pytest.approx(float(np.linalg.norm(left)), rel=1e-6, abs=1e-6)
        assert shown["relevance"] == pytest.approx(float(vectors[place] @ mean), rel=1e-6, abs=1e-6)
        contributions = coefficients * (vectors @ vectors[place])
        assert shown["unexplained"] + contributions.sum() == pytest.approx(shown["relevance"], abs=1e-6)
        redundant = shown["coefficient"] == 0 and shown["relevance"] > shown["l1"]
        assert ("redundant_with" in shown) == redundant
        for number, other in enumerate(shown.get("redundant_with", [])):
            expected = contributions[window.ids.index(other["id"])]
            assert other["contribution"] == pytest.approx(expected, rel=1e-6, abs=1e-6)
            assert other["contribution"] == pytest.approx(np.sort(contributions)[-1 - number], rel=1e-6, abs=1e-6)
            assert other["contribution"] > 0
        assert len(shown.get("redundant_with", [])) <= 3
        assert ("similarities" in shown) == (redundant or shown["coefficient"] > 0)
        near = {other["id"]: other["similarity"] for other in shown.get("similarities", [])}
        chosen = [number for number in np.argsort(-coefficients, kind="stable") if coefficients[number] > 0]
        if near:
            assert list(near) == [window.ids[number] for number in chosen[:20] if number != place]
        for other, similarity in near.items():
            assert similarity == pytest.approx(float(vectors[window.ids.index(other)] @ vectors[place]), abs=1e-5)


def test_a_copy_is_redundant_with_its_original() -> None:
    pooled = np.array([[1, 0, 0], [0.96, 0.28, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float32)
    query = query_of(np.array([0.8, 0.6, 0], dtype=np.float32))
    found = score(query, window_of(pooled), l1=0.2, l2=0.0)
    shown = detail(query, window_of(pooled), l1=0.2, l2=0.0)
    assert np.argsort(-found).tolist() == [1, 2, 0, 3]
    assert shown[0]["redundant_with"][0]["id"] == "d1"
    assert "redundant_with" not in shown[3]
    dense = np.argsort(-(pooled @ query.vectors[0]))
    assert dense[:2].tolist() == [1, 0]


def test_documents_selects_so_many() -> None:
    random = np.random.default_rng(8)
    window = window_of(unit(random.standard_normal((80, 32))).astype(np.float32))
    query = query_of(unit(random.standard_normal(32)).astype(np.float32))
    for documents in (1, 5, 10):
        shown = detail(query, window, documents=documents)
        assert sum(one["coefficient"] > 0 for one in shown) == documents
        assert shown[0]["l1"] > 0
    shown = detail(query, window, documents=80)
    assert 10 < sum(one["coefficient"] > 0 for one in shown) < 80
    assert shown[0]["l1"] == 0


@given(requests())
def test_nnn_of_several_texts_rebuilds_their_mean(
    request: tuple[Query, Window, dict[str, Any]],
) -> None:
    query, window, _ = request
    assert window.pooled is not None
    texts = len(query.vectors)
    found = np.array([shown["coefficient"] for shown in detail(query, window, l1=0.05, l2=0.1)])
    # One problem with every text's components side by side, and each document as often; penalties are per text.
    wide = np.tile(window.pooled.astype(np.float64), texts)
    penalty = Penalty(0.05 * texts, 0.1 * texts)
    joint = solve(Dictionary.of(wide), query.vectors.astype(np.float64).reshape(-1), penalty).x
    np.testing.assert_allclose(found, joint, atol=1e-6)


def test_scores_of_tiny_coefficients_stay_in_order_and_above_zero() -> None:
    found = scores(np.array([0, 1e-29, 1e-40, 0, 0.5]))
    assert found[4] > found[1] > found[0] > found[2] > found[3] > 0
    none = scores(np.zeros(10_000))
    assert none[0] < 1
    assert (np.diff(none) < 0).all()
    assert none[-1] > 0
    np.testing.assert_array_equal(scores(np.array([0.25, 0.5])), [0.25, 0.5])
    assert scores(np.empty(0)).shape == (0,)


def test_a_query_of_zeros_leaves_the_first_pass_order() -> None:
    window = window_of(unit(np.random.default_rng(9).standard_normal((6, 4))).astype(np.float32))
    for params in ({}, {"l1": 0.0}, {"documents": 3}):
        assert np.argsort(-score(query_of(np.zeros(4, np.float32)), window, **params)).tolist() == list(range(6))

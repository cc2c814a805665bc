import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.rescorers.base import Window
from es_ttc.rescorers.mmr import MmrParams, MmrRescorer
from es_ttc.vectors.tokens import Float32
from tests.rescorers.windows import query_of, unit_rows

mmr = MmrRescorer()


def window_of(pooled: Float32) -> Window:
    count = len(pooled)
    return Window([f"d{place}" for place in range(count)], np.zeros(count, np.float32), pooled=pooled)


def params_of(trade_off: float, documents: int = 100) -> MmrParams:
    return MmrParams.model_validate({"lambda": trade_off, "documents": documents})


def literal(relevance: list[float], cosines: list[list[float]], trade_off: float, documents: int) -> list[int]:
    """Carbonell and Goldstein's procedure, word by word; the best margin's rivals within rounding are not looked at."""
    picked: list[int] = []
    while len(picked) < min(documents, len(relevance)):
        best, best_value = -1, -np.inf
        for one in range(len(relevance)):
            if one in picked:
                continue
            nearest = max((cosines[one][other] for other in picked), default=0.0)
            value = (1 - trade_off) * relevance[one] - trade_off * nearest
            if value > best_value:
                best, best_value = one, value
        picked.append(best)
    return picked + [one for one in range(len(relevance)) if one not in picked]


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_mmr_equals_the_greedy_procedure(n: int, texts: int, documents: int, trade_off: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    pooled, vectors = unit_rows(random, n, 16), unit_rows(random, texts, 16)
    found = mmr.score(query_of(vectors), window_of(pooled), params_of(trade_off, documents))
    relevance = (pooled @ vectors.T).max(axis=1).tolist()
    wanted = literal(relevance, (pooled @ pooled.T).tolist(), trade_off, documents)
    assert np.argsort(-found).tolist() == wanted
    np.testing.assert_allclose(np.sort(found), np.arange(1, n + 1) / n, rtol=1e-6)


def test_no_diversity_is_dense_and_more_keeps_a_copy_back() -> None:
    pooled = np.array([[1, 0, 0], [1, 0, 0], [0.6, 0.8, 0], [0, 0, 1]], dtype=np.float32)
    query = query_of(np.array([0.98, 0.199, 0], dtype=np.float32))
    orders = {
        trade_off: np.argsort(-mmr.score(query, window_of(pooled), params_of(trade_off))).tolist()
        for trade_off in (0.0, 0.5, 1.0)
    }
    assert orders[0.0] == [0, 1, 2, 3]
    assert orders[0.5] == [0, 2, 3, 1]
    assert orders[1.0][:2] == [0, 3]


def test_duplicates_of_a_whole_window_and_zero_vectors() -> None:
    query = query_of(np.array([1, 0], dtype=np.float32))
    same = window_of(np.tile(np.array([0.6, 0.8], np.float32), (5, 1)))
    assert np.argsort(-mmr.score(query, same, params_of(0.7))).tolist() == [0, 1, 2, 3, 4]
    zeros = window_of(np.zeros((3, 2), np.float32))
    assert np.argsort(-mmr.score(query, zeros, params_of(0.7))).tolist() == [0, 1, 2]


def test_the_detail_shows_why_a_document_was_picked() -> None:
    random = np.random.default_rng(3)
    pooled, vectors = unit_rows(random, 9, 8), unit_rows(random, 1, 8)
    window, params = window_of(pooled), params_of(0.4, 6)
    details = mmr.detail(query_of(vectors), window, params)
    order = np.argsort(-mmr.score(query_of(vectors), window, params)).tolist()
    assert [details[place].get("picked") for place in order] == [1, 2, 3, 4, 5, 6, None, None, None]
    assert set(details[order[0]]) == {"picked", "relevance"}
    for turn in range(1, 6):
        shown, before = details[order[turn]], order[:turn]
        cosines = pooled[before] @ pooled[order[turn]]
        assert shown["relevance"] == pytest.approx(float(pooled[order[turn]] @ vectors[0]), abs=1e-6)
        assert shown["similarity"] == pytest.approx(float(cosines.max()), abs=1e-6)
        assert shown["nearest"] == window.ids[before[int(np.argmax(cosines))]]
    assert details[order[-1]] == {}


@settings(max_examples=30)
@given(st.integers(1, 20), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_the_score_can_be_the_relevance(n: int, trade_off: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    pooled, scores = unit_rows(random, n, 16), random.random(n).astype(np.float32) * 7
    window = Window([f"d{place}" for place in range(n)], scores, pooled=pooled)
    params = MmrParams.model_validate({"lambda": trade_off, "relevance": "score"})
    low, high = scores.min(), scores.max()
    relevance = [1.0] * n if low == high else ((scores - low) / (high - low)).tolist()
    wanted = literal(relevance, (pooled @ pooled.T).tolist(), trade_off, 100)
    assert np.argsort(-mmr.score(query_of(pooled[:1]), window, params)).tolist() == wanted

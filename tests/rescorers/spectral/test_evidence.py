import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer
from es_ttc.rescorers.spectral.evidence import main_lobe
from es_ttc.rescorers.spectral.smoothing import same_start, sinc_kernel
from es_ttc.vectors.quantise import quantise
from es_ttc.vectors.tokens import Float32
from tests.rescorers.windows import query_of, unit_rows, window_of

spectral = SpectralRescorer()


def detail(query: Query, window: Window, /, **params: Any) -> list[dict[str, Any]]:
    return spectral.detail(query, window, SpectralParams(**params))


def with_offsets(window: Window, offsets: list[NDArray[np.int32]]) -> Window:
    return Window(window.ids, window.first_pass, tokens=window.tokens, norms=window.norms, offsets=offsets)


def words(fields: list[int]) -> NDArray[np.int32]:
    """One token of four characters and a space a word, in these fields."""
    starts = [5 * fields[:place].count(field) for place, field in enumerate(fields)]
    return np.array([[field, start, start + 4] for field, start in zip(fields, starts, strict=True)], np.int32)


def planted(random: np.random.Generator, vector: Float32, length: int, at: slice) -> Float32:
    tokens = unit_rows(random, length, vector.shape[1])
    tokens[at] += vector * np.float32(0.8)
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    return tokens


@given(st.integers(2, 60), st.floats(1.01, 200), st.data())
def test_the_main_lobe_is_where_the_kernel_counts_positively_around_its_centre(
    length: int, scale: float, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, length - 1))
    first, end = main_lobe(length, scale, position)
    kernel = sinc_kernel(length, scale)
    # out[position] = sum over j of f[j] * kernel[position + start - j]
    weights = {j: position + same_start(length) - j for j in range(length)}
    inside = [kernel[weights[j]] for j in range(first, end) if 0 <= weights[j] < length]
    assert all(weight > -1e-12 for weight in inside)
    for j in (first - 1, end):
        if 0 <= j < length and 0 <= weights[j] < length:
            assert abs(weights[j] - (length - 1) / 2) >= scale


def test_the_endpoints_lobes() -> None:
    assert main_lobe(10, 1.0, 4) == (4, 5)
    assert main_lobe(10, math.inf, 4) == (0, 10)


@pytest.mark.parametrize("length", [120, 121])
def test_evidence_of_a_planted_passage_has_its_characters(length: int) -> None:
    random = np.random.default_rng(length)
    vector = unit_rows(random, 1, 64)
    tokens = quantise(planted(random, vector, length, slice(60, 67)), "int8")
    window = window_of([tokens], DEFAULT_SCALES)
    (shown,) = detail(query_of(vector), with_offsets(window, [words([0] * length)]))
    assert shown["scale"] in DEFAULT_SCALES[1:]
    assert 60 <= shown["position"] <= 67
    first, end = shown["tokens"]
    assert first <= 61
    assert end >= 66
    assert (shown["field"], shown["start"], shown["end"]) == (0, 5 * first, 5 * (end - 1) + 4)
    assert shown["score"] == shown["cosine"] == spectral.score(query_of(vector), window, SpectralParams())[0]
    assert orjson.loads(orjson.dumps(shown)) == shown


def test_without_offsets_there_are_tokens_only() -> None:
    random = np.random.default_rng(0)
    (shown,) = detail(query_of(unit_rows(random, 1, 8)), window_of([quantise(unit_rows(random, 9, 8), "float32")]))
    assert set(shown) == {"score", "scale", "position", "cosine", "tokens"}


def test_an_empty_document_has_nothing_to_show() -> None:
    empty = quantise(np.empty((0, 4), np.float32), "float32")
    window = with_offsets(window_of([empty]), [np.empty((0, 3), np.int32)])
    assert detail(query_of(np.ones(4, np.float32)), window) == [{}]


def test_the_mean_spans_the_document_in_the_field_of_its_best_position() -> None:
    random = np.random.default_rng(1)
    tokens = quantise(unit_rows(random, 10, 8), "float32")
    window = with_offsets(window_of([tokens]), [words([0, 0, 0, 1, 1, 1, 1, 1, 1, 1])])
    (shown,) = detail(query_of(unit_rows(random, 1, 8)), window, scales=["mean"])
    assert shown["scale"] == "mean"
    assert shown["tokens"] == [0, 10]
    assert (shown["field"], shown["start"], shown["end"]) == (0, 0, 14)


def test_special_tokens_have_no_characters_of_their_own() -> None:
    vector = np.array([1, 0, 0], np.float32)
    tokens = quantise(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]], np.float32), "float32")
    offsets = np.array([[0, 0, 0], [0, 0, 4], [0, 5, 9], [0, 9, 9]], np.int32)
    window = with_offsets(window_of([tokens]), [offsets])
    (single,) = detail(query_of(vector), window, scales=[1])
    assert single["tokens"] == [0, 1]
    assert "start" not in single
    (wide,) = detail(query_of(vector), window, scales=[3])
    assert (wide["field"], wide["start"], wide["end"]) == (0, 0, 9)


def test_every_role_shows_its_own_evidence() -> None:
    random = np.random.default_rng(4)
    vectors = unit_rows(random, 2, 64)
    tokens = planted(random, vectors[:1], 100, slice(10, 13))
    tokens[70:73] = planted(random, vectors[1:], 3, slice(0, 3))
    (shown,) = detail(query_of(vectors), window_of([quantise(tokens, "float32")]), roles="mean")
    first, second = shown["roles"]
    assert abs(first["position"] - 11) <= 2
    assert abs(second["position"] - 71) <= 2
    best = shown["roles"][shown["role"]]
    assert shown["score"] == best["score"] == max(first["score"], second["score"])


def test_the_score_shown_is_the_aggregated_one() -> None:
    random = np.random.default_rng(8)
    vector = unit_rows(random, 1, 16)
    window = window_of([quantise(unit_rows(random, 50, 16), "float32")])
    params = {"aggregation": "top_mean", "top_m": 4}
    (shown,) = detail(query_of(vector), window, **params)
    assert shown["score"] == spectral.score(query_of(vector), window, SpectralParams.model_validate(params))[0]
    assert shown["cosine"] >= shown["score"]


def test_some_documents_are_shown_as_among_all() -> None:
    random = np.random.default_rng(9)
    documents = [quantise(unit_rows(random, length, 32), "int8") for length in (40, 7, 300, 1)]
    window = with_offsets(window_of(documents, DEFAULT_SCALES), [words([0] * len(one)) for one in documents])
    query, params = query_of(unit_rows(random, 2, 32)), SpectralParams()
    every = spectral.detail(query, window, params)
    assert spectral.detail_of(query, window, params, [2, 0]) == [every[2], every[0]]


@pytest.mark.parametrize(
    ("params", "scale"),
    [({"pool": "softmax"}, 3.0), ({"pool": "mean"}, 3.0), ({"pool": "mean", "scale_weights": [1, 0, 9]}, 15.0)],
)
def test_a_pooled_score_shows_the_scale_with_most_part_in_it(params: dict[str, Any], scale: float) -> None:
    random = np.random.default_rng(3)
    vector = unit_rows(random, 1, 64)
    window = window_of([quantise(planted(random, vector, 120, slice(60, 63)), "float32")])
    asked = {"scales": (1.0, 3.0, 15.0), **params}
    (shown,) = detail(query_of(vector), window, **asked)
    assert shown["scale"] == scale
    assert abs(shown["position"] - 61) <= 2
    assert shown["score"] == spectral.score(query_of(vector), window, SpectralParams(**asked))[0]


def test_query_tokens_show_the_best_of_them_with_text() -> None:
    random = np.random.default_rng(6)
    tokens = unit_rows(random, 3, 64)
    document = planted(random, tokens[:1], 100, slice(80, 83))
    document[20:23] = planted(random, tokens[1:2], 3, slice(0, 3))
    spans = np.array([[0, 0], [0, 4], [5, 9]], np.int32)  # the first one is special
    query = Query("cats milk", unit_rows(random, 1, 64), tokens, token_spans=spans)
    window = window_of([quantise(document, "float32"), quantise(document[:0], "float32")])
    shown, nothing = detail(query, window, query="tokens")
    assert nothing == {}
    assert (shown["query_token"], shown["text"]) == (1, "cats")
    assert abs(shown["position"] - 21) <= 1
    assert [one["text"] for one in shown["query_tokens"]] == ["cats", "milk"]
    assert shown["score"] == spectral.score(query, window, SpectralParams(query="tokens"))[0]
    assert orjson.loads(orjson.dumps(shown)) == shown
    (unnamed, _) = detail(query_of(query.vectors, tokens), window, query="tokens")
    assert {one["query_token"] for one in unnamed["query_tokens"]} == {0, 1, 2}
    assert "text" not in unnamed
    assert detail(query_of(query.vectors, tokens[:0]), window, query="tokens") == [{}, {}]

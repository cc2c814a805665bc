"""Late interaction in compiled loops against its definition, for every form in which token vectors are stored."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.rescorers import compiled
from es_ttc.rescorers.blend.rescorer import BlendParams, BlendRescorer
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES
from es_ttc.rescorers.spectral.greatest import greatest_cosines
from es_ttc.rescorers.spectral.smoothing import IDENTITY
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import CODECS, Codec, Float32, TokenVectors
from tests.rescorers.windows import query_of, random_documents, unit_rows, window_of

MAXSIM, TOKENS = MaxSimRescorer(), MaxSimParams(query="tokens")


def greatest(query: Float32, tokens: Sequence[TokenVectors]) -> Float32:
    """The definition, in float64: the greatest inner product of each query vector with a document's tokens."""
    products = (query.astype(np.float64) @ dequantise(document).astype(np.float64).T for document in tokens)
    return np.stack([each.max(axis=1) if each.size else np.full(len(query), -1.0) for each in products])


def found(query: Float32, tokens: Sequence[TokenVectors]) -> Float32:
    assert compiled.enable()
    return greatest_cosines(query[:0], tokens, None, (IDENTITY,), plain=query)


@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.one_of(st.integers(0, 13), st.integers(0, 200)), min_size=1, max_size=6),
    code=st.sampled_from(CODECS),
    dims=st.one_of(st.integers(1, 40), st.sampled_from([96, 100, 128, 384])),
    vectors=st.integers(1, 50),
)
def test_the_greatest_cosines_are_those_of_the_definition(
    seed: int, lengths: list[int], code: Codec, dims: int, vectors: int
) -> None:
    random = np.random.default_rng(seed)
    tokens = [quantise(unit_rows(random, length, dims), code) for length in lengths]
    query = unit_rows(random, vectors, dims)
    np.testing.assert_allclose(found(query, tokens), greatest(query, tokens), rtol=0, atol=1e-6)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3]), peak=st.sampled_from([1.0, 100.0])
)
def test_tokens_that_the_rounding_cannot_tell_apart_are_told_apart(seed: int, spread: float, peak: float) -> None:
    """Products with a query in steps of int16 are too coarse for these tokens: they may only preselect."""
    random = np.random.default_rng(seed)
    near = unit_rows(random, 1, 96) + spread * unit_rows(random, 150, 96)
    tokens = [quantise(np.concatenate([near, unit_rows(random, 50, 96)])[random.permutation(200)], "int8")]
    query = near[:20] + 1e-3 * unit_rows(random, 20, 96)
    query[:, 3] *= peak  # one great component makes the steps of the others coarse
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    np.testing.assert_allclose(found(query, tokens), greatest(query, tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize("vectors", [1, 9])
@pytest.mark.parametrize("dims", [64, 520, 4096])
def test_integers_do_not_overflow(dims: int, vectors: int, build: str) -> None:
    signs = np.where(np.arange(dims) % 3 == 0, -1, 1)
    factor = np.float32(1 / (127 * np.sqrt(dims)))
    tokens = [
        TokenVectors(np.array([signs * 127, signs * -128], np.int8), np.full(2, factor)),
        TokenVectors(np.array([signs * -127], np.int8), np.full(1, factor)),
    ]
    atol = 1e-5 if build == "portable" else 1e-6  # it adds up floats, one component after the other
    query = np.repeat((signs / np.sqrt(dims)).astype(np.float32)[None], vectors, axis=0)
    np.testing.assert_allclose(found(query, tokens), [[1.0] * vectors, [-1.0] * vectors], rtol=0, atol=atol)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    dims=st.one_of(st.integers(1, 200), st.sampled_from([256, 384, 1024])),
    vectors=st.integers(1, 4),
    peak=st.sampled_from([1.0, 30.0, 1000.0]),
)
def test_products_with_a_few_vectors_are_as_exact_as_float32(seed: int, dims: int, vectors: int, peak: float) -> None:
    """These are multiplied in digits; one great component makes all of them coarser."""
    random = np.random.default_rng(seed)
    tokens = [quantise(unit_rows(random, 60, dims), "int8")]
    query = unit_rows(random, vectors, dims)
    query[:, dims // 2] *= peak
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    np.testing.assert_allclose(found(query, tokens), greatest(query, tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_products_with_what_is_not_finite_are_not_numbers(wrong: float) -> None:
    """So that a window whose query could not be encoded is not ranked."""
    query = unit_rows(np.random.default_rng(0), 2, 24)
    query[1, 3] = wrong
    products = found(query, [quantise(unit_rows(np.random.default_rng(1), 5, 24), "int8")])
    assert np.isfinite(products[:, 0]).all()
    assert not np.isfinite(products[:, 1]).any()


@pytest.mark.parametrize("size", [1e-30, 1e-36, 1e-42])
def test_tiny_vectors_have_tiny_products(size: float) -> None:
    query = unit_rows(np.random.default_rng(0), 1, 24) * np.float32(size)
    products = found(query, [quantise(unit_rows(np.random.default_rng(1), 5, 24), "int8")])
    assert (np.abs(products) <= size).all()


@pytest.mark.parametrize("vectors", [2, 7])
def test_zero_vectors_have_the_product_0(vectors: int) -> None:
    query = np.zeros((vectors, 24), np.float32)
    tokens = [
        quantise(np.zeros((40, 24), np.float32), "int8"),
        quantise(unit_rows(np.random.default_rng(0), 9, 24), "int8"),
    ]
    assert not found(query, tokens).any()


def test_vectors_of_any_layout_are_read() -> None:
    random = np.random.default_rng(1)
    wide = unit_rows(random, 90, 192)
    shifted = np.frombuffer(b"\0" + wide[:50, :96].tobytes(), np.uint8)[1:].view(np.float32).reshape(50, 96)
    assert not shifted.flags.aligned
    factors = np.frombuffer(b"\0" + wide[0, :90].tobytes(), np.uint8)[1:].view(np.float32)
    steps = random.integers(-127, 128, (90, 192), dtype=np.int8)
    tokens = [
        TokenVectors(wide[:, ::2]),
        TokenVectors(shifted),
        TokenVectors(wide[::3, 96:].astype(np.float16)[:, ::-1]),
        TokenVectors(steps[:, ::2], factors * np.float32(1e-2)),
        TokenVectors(steps[:, 1:97], np.abs(wide[:, 0]) * np.float32(1e-2)),
    ]
    query = unit_rows(random, 20, 96)
    np.testing.assert_allclose(found(query, tokens), greatest(query, tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize("code", CODECS)
def test_a_document_scores_the_same_in_any_company(code: Codec) -> None:
    random = np.random.default_rng(4)
    tokens = [quantise(unit_rows(random, length, 100), code) for length in (1, 250, 7, 96, 97, 6, 500)]
    query = query_of(unit_rows(random, 1, 100), unit_rows(random, 32, 100))
    assert compiled.enable()
    together = MAXSIM.score(query, window_of(tokens), TOKENS)
    alone = [MAXSIM.score(query, window_of([one]), TOKENS)[0] for one in tokens]
    np.testing.assert_array_equal(together, np.array(alone, dtype=np.float32))


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_blend_gives_the_same_as_numpy(codec: Literal["float32", "float16", "int8"]) -> None:
    random = np.random.default_rng(5)
    window = window_of(random_documents(random, [30, 1, 400, 77, 77, 210], 48, codec), DEFAULT_SCALES)
    query = query_of(unit_rows(random, 1, 48), unit_rows(random, 19, 48))
    params = BlendParams(signals={"spectral": 1, "late_interaction": 1})
    compiled.enable(False)
    by_numpy = BlendRescorer().score(query, window, params)
    assert compiled.enable()
    np.testing.assert_allclose(BlendRescorer().score(query, window, params), by_numpy, rtol=0, atol=1e-5)

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral import DEFAULT_SCALES, norms, scale_norms
from es_ttc.rescorers.spectral.norms import norms_of_scales
from es_ttc.vectors.quantise import quantise
from es_ttc.vectors.tokens import Float32, ScaleNorms
from tests.rescorers import reference
from tests.rescorers.windows import unit_rows


def literal(tokens: Float32, scales: tuple[float, ...]) -> Float32:
    rows = [np.linalg.norm(reference.smoothed(tokens.astype(np.float64), scale), axis=1) for scale in scales]
    return np.array(rows, dtype=np.float32)


@given(st.integers(1, 80), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_norms_are_the_lengths_of_smoothed_rows(length: int, dims: int, seed: int) -> None:
    tokens = unit_rows(np.random.default_rng(seed), length, dims)
    scales = (2.0, 3.0, 7.5, 30.0, math.inf)
    result = scale_norms(tokens, scales)
    assert result.scales == scales
    assert result.values.dtype == np.float32
    np.testing.assert_allclose(result.values, literal(tokens, scales), atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 191, 384, 1000])
def test_norms_of_documents_of_real_size(length: int) -> None:
    tokens = unit_rows(np.random.default_rng(length), length, 48)
    np.testing.assert_allclose(
        scale_norms(tokens, DEFAULT_SCALES).values, literal(tokens, DEFAULT_SCALES[1:]), atol=5e-7
    )


def test_scale_one_is_not_stored() -> None:
    tokens = unit_rows(np.random.default_rng(0), 5, 4)
    assert scale_norms(tokens, (1.0, 3.0)).scales == (3.0,)
    assert scale_norms(tokens, (1.0,)).values.shape == (0, 5)


def test_an_empty_document_has_no_norms() -> None:
    assert scale_norms(np.empty((0, 4), np.float32), (3.0, math.inf)).values.shape == (2, 0)


def test_zero_vectors_have_length_zero() -> None:
    assert np.abs(scale_norms(np.zeros((300, 4), np.float32), (3.0, math.inf)).values).max() == 0


def test_the_result_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = unit_rows(np.random.default_rng(3), 400, 30)
    whole = scale_norms(tokens, DEFAULT_SCALES).values
    monkeypatch.setattr(norms, "_CHUNK_BYTES", 1)
    np.testing.assert_allclose(scale_norms(tokens, DEFAULT_SCALES).values, whole, rtol=2e-6)


def test_a_long_document_takes_little_memory() -> None:
    tokens = unit_rows(np.random.default_rng(1), 20_000, 64)
    tracemalloc.start()
    try:
        scale_norms(tokens, DEFAULT_SCALES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 7 * tokens.nbytes / 2  # the smoothed matrices of all scales would be 7 times the input


def test_stored_norms_are_used_and_missing_scales_computed() -> None:
    tokens = quantise(unit_rows(np.random.default_rng(2), 40, 8), "float32")
    marked = ScaleNorms((7.0, 3.0), np.stack([np.full(40, 0.7), np.full(40, 0.3)]).astype(np.float32))
    found = norms_of_scales(tokens, marked, (3.0, 5.0, 7.0, math.inf))
    np.testing.assert_array_equal(found[0], marked.values[1])
    np.testing.assert_array_equal(found[2], marked.values[0])
    wanted = scale_norms(
        quantise(tokens.values.astype(np.float32), "float32").values.astype(np.float32), (5.0, math.inf)
    )
    np.testing.assert_array_equal(found[[1, 3]], wanted.values)
    for scales in ((7.0, 3.0), (7.0,)):  # a stored grid, or the beginning of one, is not copied
        assert norms_of_scales(tokens, marked, scales).base is marked.values


def test_norms_of_another_document_are_refused() -> None:
    tokens = quantise(unit_rows(np.random.default_rng(2), 40, 8), "float32")
    with pytest.raises(ValueError, match="40 tokens"):
        norms_of_scales(tokens, ScaleNorms((3.0,), np.ones((1, 39), np.float32)), (3.0,))

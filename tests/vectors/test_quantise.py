import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import CODECS, Codec, Float32
from tests.rescorers.windows import unit_rows

matrices = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12), elements=st.floats(-1, 1, width=32)
)


@given(matrices)
def test_float32_is_lossless(matrix: Float32) -> None:
    np.testing.assert_array_equal(dequantise(quantise(matrix, "float32")), matrix)


@given(matrices)
def test_float16_is_the_nearest_half_even_where_subnormal(matrix: Float32) -> None:
    np.testing.assert_array_equal(dequantise(quantise(matrix, "float16")), matrix.astype(np.float16).astype(np.float32))


def test_every_finite_float16_is_widened_exactly() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)][None, :]
    tokens = quantise(finite.astype(np.float32), "float16")
    np.testing.assert_array_equal(dequantise(tokens), finite.astype(np.float32))


@given(matrices)
def test_int8_is_within_one_step_and_keeps_each_rows_length(matrix: Float32) -> None:
    back = dequantise(quantise(matrix, "int8"))
    step = np.max(np.abs(matrix), axis=1, initial=0.0, keepdims=True) / 127
    assert (np.abs(back - matrix) <= step * 1.01 + 1e-37).all()  # the rest: subnormal numbers
    np.testing.assert_allclose(np.linalg.norm(back, axis=1), np.linalg.norm(matrix, axis=1), rtol=1e-5, atol=1e-18)


@pytest.mark.parametrize(
    ("codec", "bytes_a_row", "least"),
    [
        ("float32", 1536, 0.9998),
        ("float16", 768, 0.9997),
        ("int8", 388, 0.999),
        ("int4", 196, 0.994),
        ("int2", 100, 0.93),
    ],
)
def test_storage_size_and_cosine_to_the_original(codec: Codec, bytes_a_row: int, least: float) -> None:
    matrix = unit_rows(np.random.default_rng(1), 50, 384)
    matrix[:, 3] += 2  # as real encoders have it
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    tokens = quantise(matrix, codec)
    assert tokens.nbytes == 50 * bytes_a_row
    assert np.einsum("ij,ij->i", dequantise(tokens), matrix).min() > least


@pytest.mark.parametrize("codec", CODECS)
def test_zero_rows_and_empty_documents(codec: Codec) -> None:
    np.testing.assert_array_equal(dequantise(quantise(np.zeros((2, 3), np.float32), codec)), np.zeros((2, 3)))
    assert dequantise(quantise(np.empty((0, 3), np.float32), codec)).shape == (0, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_quantise_refuses_values_that_are_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        quantise(np.array([[0.5, value]], np.float32), "int8")


def test_quantise_refuses_a_vector() -> None:
    with pytest.raises(ValueError, match="matrix"):
        quantise(np.zeros(3, np.float32), "int8")


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="int1"):
        quantise(np.zeros((1, 3), np.float32), "int1")  # type: ignore[arg-type]

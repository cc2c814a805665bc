import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral.spans import span_positions, span_vectors
from tests.rescorers import reference
from tests.rescorers.windows import unit_rows


@given(
    length=st.integers(1, 60),
    dims=st.integers(1, 12),
    scale=st.sampled_from([1.0, 1.5, 2.0, 7.5, 10.0, 300.0]),
    stride=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_spans_are_smoothed_rows_of_unit_length(length: int, dims: int, scale: float, stride: int, seed: int) -> None:
    tokens = unit_rows(np.random.default_rng(seed), length, dims)
    positions, vectors = span_vectors(tokens, scale, stride)
    rows = reference.smoothed(tokens.astype(np.float64), scale)[positions]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    kept = np.isin(span_positions(length, stride), positions)
    dropped = reference.smoothed(tokens.astype(np.float64), scale)[span_positions(length, stride)[~kept]]
    assert np.linalg.norm(dropped, axis=1).max(initial=0) < 1.1e-5
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors * lengths, rows, atol=1e-6)


@given(st.integers(1, 500), st.integers(1, 600))
def test_every_token_is_near_a_centre(length: int, stride: int) -> None:
    positions = span_positions(length, stride)
    assert len(positions) == -(-length // stride)
    assert positions[0] + (length - 1 - positions[-1]) == (length - 1) % stride
    assert abs(positions[0] - (length - 1 - positions[-1])) <= 1
    assert set(np.diff(positions)) <= {stride}


@pytest.mark.parametrize("tokens", [np.zeros((0, 4), np.float32), np.zeros((9, 4), np.float32)])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_spans_of_zero_vectors_are_left_out(tokens: np.ndarray, scale: float) -> None:
    positions, vectors = span_vectors(tokens, scale, 2)
    assert positions.shape == (0,)
    assert vectors.shape == (0, 4)

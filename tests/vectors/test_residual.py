import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_ttc.vectors.packed import (
    UnknownCodebook,
    codebook_id,
    pack_codebook,
    pack_residuals,
    unpack_codebook,
    unpack_tokens,
)
from es_ttc.vectors.quantise import dequantise
from es_ttc.vectors.residual import Bits, Codebook, decode, encode, learn
from es_ttc.vectors.tokens import Float32


def clustered(seed: int, rows: int, dims: int, clusters: int = 8) -> Float32:
    """Unit rows about a few directions, as token vectors are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((clusters, dims))
    matrix = centres[random.integers(0, clusters, rows)] + 0.5 * random.standard_normal((rows, dims))
    unit: Float32 = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)
    return unit


def literal(matrix: Float32, codebook: Codebook) -> Float32:
    """Decode one component at a time: the nearest centroid, the nearest weight, the row's own length."""
    centroids = codebook.centroids.astype(np.float64) * codebook.step
    weights = codebook.weights.astype(np.float64) * codebook.step
    rows = []
    for vector in matrix.astype(np.float64):
        centroid = centroids[np.argmin(((centroids - vector) ** 2).sum(axis=1))]
        row = np.array(
            [c + weights[np.argmin(np.abs(weights - (x - c)))] for x, c in zip(vector, centroid, strict=True)]
        )
        length = np.linalg.norm(row)
        rows.append(row * np.linalg.norm(vector) / length if length else row)
    return np.array(rows, dtype=np.float32).reshape(matrix.shape)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(0, 9), dims=st.integers(1, 33), bits=st.sampled_from([2, 4]), seed=st.integers(0, 2**32 - 1))
def test_it_is_what_a_component_at_a_time_gives(rows: int, dims: int, bits: Bits, seed: int) -> None:
    codebook = learn(clustered(seed, 200, dims), bits, centroids=7, seed=seed)
    matrix = clustered(seed + 1, rows, dims)
    found = dequantise(decode(encode(matrix, codebook), codebook))
    # A tie between two weights may fall either way: its error is the same.
    assert np.linalg.norm(found - matrix) == pytest.approx(np.linalg.norm(literal(matrix, codebook) - matrix), abs=1e-3)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.linalg.norm(matrix, axis=1), rtol=1e-5)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(0, 9), dims=st.integers(1, 33), bits=st.sampled_from([2, 4]), seed=st.integers(0, 2**32 - 1))
def test_blobs_round_trip_to_the_bit(rows: int, dims: int, bits: Bits, seed: int) -> None:
    codebook = learn(clustered(seed, 50, dims), bits, centroids=5)
    packed = pack_codebook(codebook)
    again = unpack_codebook(packed)
    np.testing.assert_array_equal(again.centroids, codebook.centroids)
    np.testing.assert_array_equal(again.weights, codebook.weights)
    assert pack_codebook(again) == packed

    residuals = encode(clustered(seed + 1, rows, dims), codebook)
    blob = pack_residuals(residuals, codebook_id(packed))
    expected = decode(residuals, codebook)
    found = unpack_tokens(blob, {codebook_id(packed): again})
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.scales, expected.scales)
    with pytest.raises(UnknownCodebook, match=codebook_id(packed)):
        unpack_tokens(blob)


@pytest.mark.parametrize(("bits", "bytes_a_token", "least_cosine"), [(2, 102, 0.93), (4, 198, 0.995)])
def test_size_and_cosine_to_the_original(bits: Bits, bytes_a_token: int, least_cosine: float) -> None:
    matrix = clustered(0, 4000, 384)
    codebook = learn(matrix[:3000], bits, centroids=64)
    residuals = encode(matrix[3000:], codebook)
    assert len(pack_residuals(residuals, "0" * 16)) == 1000 * bytes_a_token + 48
    back = dequantise(decode(residuals, codebook))
    assert np.einsum("ij,ij->i", back, matrix[3000:]).mean() > least_cosine


def test_no_sum_of_steps_leaves_the_range() -> None:
    codebook = learn(clustered(3, 500, 16), 4, centroids=32)
    sums = codebook.centroids.astype(int)[:, :, None] + codebook.weights.astype(int)
    assert np.abs(sums).max() <= 127


def test_learning_is_repeatable_and_bounded() -> None:
    matrix = clustered(5, 300, 24)
    assert pack_codebook(learn(matrix, 2, seed=1)) == pack_codebook(learn(matrix, 2, seed=1))
    assert len(learn(matrix, 2).centroids) == 256
    assert len(learn(matrix[:3], 2).centroids) == 3
    assert len(learn(np.repeat(matrix[:2], 100, axis=0), 2, centroids=50).centroids) == 50


def test_a_zero_vector_stays_one_and_what_cannot_be_held_is_refused() -> None:
    codebook = learn(clustered(7, 100, 6), 2, centroids=4)
    assert not dequantise(decode(encode(np.zeros((2, 6), np.float32), codebook), codebook)).any()
    with pytest.raises(ValueError, match="6 dimensions"):
        encode(np.zeros((2, 5), np.float32), codebook)
    with pytest.raises(ValueError, match="finite"):
        encode(np.full((1, 6), np.nan, np.float32), codebook)
    with pytest.raises(ValueError, match="shape"):
        learn(np.zeros((0, 6), np.float32), 2)
    other = learn(clustered(7, 100, 60), 2, centroids=4)
    with pytest.raises(ValueError, match="60 dimensions"):
        decode(encode(clustered(1, 3, 6), codebook), other)
    small = learn(clustered(7, 100, 6), 2, centroids=1)
    with pytest.raises(ValueError, match="of 1"):
        decode(encode(clustered(1, 30, 6), codebook), small)


@pytest.mark.parametrize("weights", [None, [1, 2], [3, 2, 1, 0], [0, 1, 2, 300], ["a", "b", "c", "d"]])
def test_a_damaged_codebook_is_refused(weights: object) -> None:
    blob = pack_codebook(learn(clustered(9, 50, 4), 2, centroids=2))
    start = blob.index(b"{")
    end = blob.index(b"}") + 1
    text = (b'{"weights":' + str(weights).replace("None", "null").replace("'", '"').encode() + b"}").ljust(end - start)
    with pytest.raises(ValueError, match="packed codebook"):
        unpack_codebook(blob[:start] + text + blob[end:])

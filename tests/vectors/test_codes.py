from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from es_ttc.vectors.codes import LEVELS, encode, steps_of
from es_ttc.vectors.quantise import as_stored, dequantise
from es_ttc.vectors.rotation import rotate
from es_ttc.vectors.tokens import BLOCK, Bits, Float32
from tests.rescorers.windows import unit_rows

BITS: tuple[Bits, ...] = (4, 2)
matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=80),
    elements=st.floats(-1, 1, width=32, allow_subnormal=False),
)


def gaussian_levels(count: int) -> np.ndarray:
    """Return the levels of least squared error for a Gaussian, by Lloyd's algorithm over its quantiles."""
    from scipy.stats import norm

    levels = norm.ppf((np.arange(count) + 0.5) / count)
    for _ in range(2000):
        borders = np.concatenate(([-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]))
        levels = (norm.pdf(borders[:-1]) - norm.pdf(borders[1:])) / (norm.cdf(borders[1:]) - norm.cdf(borders[:-1]))
    return levels


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_those_of_a_gaussian_in_whole_steps(bits: Bits) -> None:
    levels = gaussian_levels(2**bits)
    np.testing.assert_array_equal(np.rint(levels / levels[-1] * 127), LEVELS[bits])


@given(matrices, st.sampled_from(BITS))
def test_each_component_gets_the_nearest_level_and_each_row_keeps_its_length(matrix: Float32, bits: Bits) -> None:
    coded = encode(matrix, bits)
    lengths = np.linalg.norm(matrix.astype(np.float64), axis=1, keepdims=True)
    unit = {4: 2.7326, 2: 1.5104}[bits] / 127
    wanted = rotate(matrix) * np.sqrt(matrix.shape[1]) / np.where(lengths > 0, lengths, 1) / unit
    steps = steps_of(coded).astype(np.float64)
    nearest = np.abs(wanted[..., None] - LEVELS[bits]).min(axis=-1)
    close = np.abs(wanted - steps) <= nearest + 1e-3 + 1e-5 * np.abs(wanted)
    assert close[lengths[:, 0] > 1e-3].all()
    np.testing.assert_allclose(np.linalg.norm(dequantise(coded), axis=1), lengths[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dims", [1, 63, 64, 65, 100, 384])
def test_codes_stand_in_blocks_as_documented(bits: Bits, dims: int) -> None:
    coded = encode(unit_rows(np.random.default_rng(dims), 9, dims), bits)
    steps = steps_of(coded)
    assert steps.shape == (9, dims)
    assert coded.values.shape == (9, -(-dims // BLOCK) * BLOCK * bits // 8)
    across = BLOCK * bits // 8
    for component in range(dims):
        block, within = divmod(component, BLOCK)
        part, byte = divmod(within, across)
        code = coded.values.view(np.uint8)[:, block * across + byte] >> (bits * part) & (2**bits - 1)
        np.testing.assert_array_equal(LEVELS[bits][code], steps[:, component])


@pytest.mark.parametrize(
    ("bits", "dims", "expected"),
    [
        (4, 384, "e4929d9f6b90a875"),
        (2, 384, "2b27b7634ffb4be4"),
        (4, 100, "068cef0ac364e4d2"),
        (2, 100, "f2d01d5b6f3e861d"),
    ],
)
def test_codes_are_the_same_on_every_machine(bits: Bits, dims: int, expected: str) -> None:
    """Whole numbers in place of random ones: the input too must be the same everywhere."""
    rows = (np.arange(300 * dims) * 7919 % 1009 - 504).reshape(300, dims).astype(np.float32) / np.float32(1024)
    coded = encode(rows, bits)
    assert coded.scales is not None
    assert sha256(coded.values.tobytes() + coded.scales.tobytes()).hexdigest()[:16] == expected


@pytest.mark.parametrize("bits", BITS)
def test_a_query_is_rotated_and_documents_are_not(bits: Bits) -> None:
    rows, queries = unit_rows(np.random.default_rng(2), 40, 100), unit_rows(np.random.default_rng(3), 5, 100)
    coded = encode(rows, bits)
    np.testing.assert_allclose(rotate(queries) @ as_stored(coded).T, queries @ dequantise(coded).T, atol=1e-6)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral.smoothing import kernel_bank, same_start, sinc_kernel
from tests.rescorers import reference


@given(st.integers(1, 400), st.floats(1, 1000))
def test_kernel_equals_the_papers(length: int, scale: float) -> None:
    np.testing.assert_allclose(sinc_kernel(length, scale), reference.sinc_kernel(length, scale), atol=1e-12)


@given(st.integers(1, 3000), st.floats(1, 1000))
def test_kernel_is_symmetric_and_sums_to_one(length: int, scale: float) -> None:
    kernel = sinc_kernel(length, scale)
    assert abs(kernel.sum() - 1) < 1e-12
    np.testing.assert_allclose(kernel, kernel[::-1], atol=1e-15)


def test_the_normaliser_stays_far_from_zero() -> None:
    for length in (1, 2, 3, 4, 5, 7, 8, 16, 50, 333, 1024, 8192):
        for scale in (1, 1.5, 2, 3, 7, 30, 100, 1000):
            offsets = np.arange(length) - (length - 1) / 2
            assert np.sinc(offsets / scale).sum() > 0.84  # the least: length 4 at scale 1


def test_a_wide_kernel_is_the_mean() -> None:
    np.testing.assert_allclose(sinc_kernel(37, 1e5), np.full(37, 1 / 37), rtol=1e-6)


def test_the_sampled_kernel_of_scale_one_is_a_delta_for_odd_lengths_only() -> None:
    np.testing.assert_allclose(sinc_kernel(7, 1), [0, 0, 0, 1, 0, 0, 0], atol=1e-15)
    np.testing.assert_allclose(sinc_kernel(6, 1), [0.115, -0.192, 0.577, 0.577, -0.192, 0.115], atol=1e-3)


def test_a_bank_is_its_kernels() -> None:
    bank = kernel_bank(12, (3.0, 7.5))
    np.testing.assert_array_equal(bank, [sinc_kernel(12, 3.0), sinc_kernel(12, 7.5)])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 10])
def test_where_the_same_part_starts(length: int) -> None:
    signal = np.random.default_rng(length).random(length)
    kernel = sinc_kernel(length, 3)
    start = same_start(length)
    np.testing.assert_array_equal(
        np.convolve(signal, kernel, "same"), np.convolve(signal, kernel, "full")[start : start + length]
    )

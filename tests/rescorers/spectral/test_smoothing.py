import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_ttc.rescorers.spectral.smoothing import same_start, sinc_kernel, smooth, transform_size
from es_ttc.rescorers.threads import Scratch

SCALES = (2.5, 3.0, 30.0, 400.0)


def test_transforms_are_long_enough_and_at_most_half_too_long() -> None:
    for length in range(1, 5000):
        needed = 2 * length - 1 - same_start(length)
        assert needed <= transform_size(length) <= max(2, needed * 3 / 2)


@given(st.data(), st.integers(0, 2**32 - 1))
def test_smoothing_equals_numpys_same_convolution(data: st.DataObject, seed: int) -> None:
    longest = data.draw(st.integers(1, 300))
    size = transform_size(longest)
    lengths = [n for n in range(1, longest + 1) if transform_size(n) == size]
    lengths = sorted(data.draw(st.lists(st.sampled_from(lengths), min_size=1, max_size=6)))
    random = np.random.default_rng(seed)
    signals = np.zeros((len(lengths), 2, size), np.float32)
    for signal, length in zip(signals, lengths, strict=True):
        signal[:, :length] = random.uniform(-1, 1, (2, length))
    smoothed = smooth(signals, lengths, SCALES, Scratch())
    for document, length in enumerate(lengths):
        for role in range(2):
            for place, scale in enumerate(SCALES):
                wanted = np.convolve(signals[document, role, :length], sinc_kernel(length, scale), "same")
                np.testing.assert_allclose(smoothed[document, role, place, :length], wanted, atol=5e-7)

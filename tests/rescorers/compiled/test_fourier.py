import numpy as np
import pytest

from es_ttc.rescorers.compiled.fourier import transform
from es_ttc.rescorers.compiled.window import twiddles

SIZES = (1, 2, 3, 4, 6, 8, 96, 256, 384, 1536)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lanes", [1, 5, 32])
def test_it_is_numpys(size: int, lanes: int) -> None:
    random = np.random.default_rng(size)
    signals = random.standard_normal((size, lanes)) + 1j * random.standard_normal((size, lanes))
    forward, inverse = np.fft.fft(signals, axis=0), np.fft.ifft(signals, axis=0) * size
    for wanted, sign in ((forward, -1), (inverse, 1)):
        for begin in (0, 2):
            buffers = np.full((4, size * lanes + 3), np.nan, dtype=np.float32)
            buffers[begin, : size * lanes] = signals.real.ravel()
            buffers[begin + 1, : size * lanes] = signals.imag.ravel()
            end = transform(buffers, begin, size, lanes, twiddles(size), np.float32(sign))
            found = (buffers[end] + 1j * buffers[end + 1])[: size * lanes].reshape(size, lanes)
            np.testing.assert_allclose(found, wanted, atol=1e-6 * np.sqrt(size) * 5)

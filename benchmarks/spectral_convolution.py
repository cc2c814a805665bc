"""From which size on a Fourier transform pays in Spectral Retrieval (section III-H: from N L of about 16,000).

    python -m benchmarks.spectral_convolution

N is a document's number of tokens, L the number of a kernel's taps. The paper's form convolves every component with
every kernel; ours convolves the similarities, with kernels as long as the document. Both by numpy in float64, as the
paper's pseudocode has them. Times are processor time of one thread, the least of alternating runs.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import heading, table
from es_ttc.rescorers.spectral import DEFAULT_SCALES
from es_ttc.rescorers.spectral.smoothing import kernel_bank, sinc_kernel, smooth, transform_size
from es_ttc.rescorers.threads import Scratch

Float64 = NDArray[np.float64]

LENGTHS = (64, 128, 200, 256, 512, 1024, 2048, 4096)
TAPS = (3, 7, 15, 31, 63, 127, 255, 511)
COMPONENTS = 24
"""Of the paper's 768: both forms of convolution take each component alike."""
DOCUMENTS = 20
REPEAT = 9


def ratios(lengths: Sequence[int] = LENGTHS, repeat: int = REPEAT) -> dict[int, dict[int, float]]:
    """Return by N and L how many times longer the direct convolution of all components takes than the transforms."""
    random = np.random.default_rng(0)
    return {
        length: {
            taps: times_longer(
                partial(direct, rows, sinc_kernel(taps, taps / 2)),
                partial(transformed, rows, sinc_kernel(taps, taps / 2)),
                repeat,
            )
            for taps in TAPS
            if taps <= length
        }
        for length in lengths
        for rows in [random.standard_normal((COMPONENTS, length))]
    }


def crossing(by_taps: Mapping[int, float]) -> float:
    """Return the L at which both take equally long, between the measured ones: infinite if the transform never pays."""
    previous = (1.0, 1e-3)
    for taps, ratio in by_taps.items():
        if ratio >= 1:
            share = -math.log(previous[1]) / (math.log(ratio) - math.log(previous[1]))
            return float(previous[0] * (taps / previous[0]) ** share)
        previous = (taps, ratio)
    return math.inf


def of_similarities(
    lengths: Sequence[int] = (8, 16, 32, 64, 128, 200, 256, 512), repeat: int = REPEAT
) -> dict[int, float]:
    """Return by N how many times longer the direct convolution of similarities takes than ours."""
    scales, scratch, found = DEFAULT_SCALES[1:], Scratch(), {}
    random = np.random.default_rng(0)
    for length in lengths:
        size = transform_size(length)
        signals = np.zeros((DOCUMENTS, 1, size), np.float32)
        signals[:, 0, :length] = random.standard_normal((DOCUMENTS, length))
        rows, kernels = signals[:, 0, :length].astype(np.float64), kernel_bank(length, scales)
        found[length] = times_longer(
            partial(direct_all, rows, kernels),
            partial(smooth, signals, [length] * DOCUMENTS, scales, scratch),
            repeat,
        )
    return found


def direct(rows: Float64, kernel: Float64) -> Float64:
    """Convolve each row with a kernel by its definition."""
    return np.stack([np.convolve(row, kernel, "same") for row in rows])


def direct_all(rows: Float64, kernels: Float64) -> None:
    """Convolve each row with several kernels."""
    for kernel in kernels:
        direct(rows, kernel)


def transformed(rows: Float64, kernel: Float64) -> Float64:
    """Do the same by Fourier transforms."""
    length, taps = rows.shape[1], len(kernel)
    size = 1 << (length + taps - 2).bit_length()
    full = np.fft.irfft(np.fft.rfft(rows, size) * np.fft.rfft(kernel, size), size)
    start = (taps - 1) // 2
    return full[:, start : start + length]


def times_longer(slow: Callable[[], object], fast: Callable[[], object], repeat: int) -> float:
    """Return the ratio of the least processor times of two calls, which alternate."""
    least = [math.inf, math.inf]
    for _ in range(repeat):
        for place, call in enumerate((slow, fast)):
            start = time.thread_time_ns()
            call()
            least[place] = min(least[place], time.thread_time_ns() - start)
    return least[0] / least[1]


def main() -> None:
    """Print the tables."""
    print(heading("Direct convolution and Fourier transforms", data="random numbers, seed 0"))
    measured = ratios()
    rows = []
    for length, by_taps in measured.items():
        equal = crossing(by_taps)
        cells = [f"{by_taps[taps]:.2f}" if taps in by_taps else "" for taps in TAPS]
        rows.append((length, *cells, f"{equal:.0f}", f"{length * equal:,.0f}"))
    print("All components, times that the direct convolution takes longer:\n")
    print(table(("N", *(f"L = {taps}" for taps in TAPS), "equal at L", "N L"), rows))
    print("Similarities, kernels of N taps, seven scales at once:\n")
    similarities = of_similarities()
    print(table([f"N = {length}" for length in similarities], [[f"{ratio:.2f}" for ratio in similarities.values()]]))


if __name__ == "__main__":
    main()

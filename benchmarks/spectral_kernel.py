"""The spectral kernel's time for a window of 100 documents, and the norms' time at ingest.

Targets (100 documents of 256 tokens, 384 components, warm): under 2 ms from float32, under 4 ms from int8.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.common import heading, milliseconds, table
from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.maxsim import MaxSimParams, MaxSimRescorer
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer, scale_norms
from es_ttc.rescorers.spectral.smoothing import kernel_bank, same_start, sinc_kernel
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Codec, Float32

DIMS = 384
DOCUMENTS = 100
TARGETS: dict[Codec, str] = {"float32": "2", "float16": "", "int8": "4", "int4": "", "int2": ""}


def unit_rows(random: np.random.Generator, rows: int) -> Float32:
    matrix = random.standard_normal((rows, DIMS)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def window_of(documents: Sequence[Float32], codec: Codec, *, with_norms: bool) -> Window:
    tokens = [quantise(matrix, codec) for matrix in documents]
    stored = [scale_norms(dequantise(document), DEFAULT_SCALES) for document in tokens] if with_norms else None
    return Window([str(place) for place in range(len(tokens))], np.zeros(len(tokens), np.float32), None, tokens, stored)


def naive(query: Float32, tokens: Float32) -> float:
    """The paper's pseudocode (III-E): every component convolved, rows renormalised."""
    best = -np.inf
    for scale in DEFAULT_SCALES:
        rows = tokens
        if scale != 1:
            kernel = sinc_kernel(len(tokens), scale)
            rows = np.stack([np.convolve(column, kernel, "same") for column in tokens.T], axis=1)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        best = max(best, float(np.max(rows @ query)))
    return best


def kernel_table(random: np.random.Generator) -> str:
    spectral, maxsim = SpectralRescorer(), MaxSimRescorer()
    query = Query("", unit_rows(random, 1))
    shapes = {
        "256 each": [256] * DOCUMENTS,
        "10..502": random.integers(10, 503, DOCUMENTS).tolist(),
        "10..1000": random.integers(10, 1001, DOCUMENTS).tolist(),
    }
    rows = []
    for name, lengths in shapes.items():
        documents = [unit_rows(random, length) for length in lengths]
        for codec, target in TARGETS.items():
            window = window_of(documents, codec, with_norms=True)
            assert window.tokens is not None
            read = sum(tokens.nbytes for tokens in window.tokens) / 1e6
            by_numpy, by_loops = in_turns(partial(spectral.score, query, window, SpectralParams()))
            floor, floor_loops = in_turns(partial(maxsim.score, query, window, MaxSimParams()))
            ratios = (f"{by_loops[0] / by_numpy[0]:.2f}", f"{floor_loops[0]:.2f}") if compiled.available() else ("", "")
            rows.append(
                (
                    name,
                    codec,
                    f"{read:.1f}",
                    *(f"{value:.2f}" for value in by_numpy),
                    *(f"{value:.2f}" for value in by_loops),
                    ratios[0],
                    target if name == "256 each" else "",
                    f"{floor[0]:.2f}",
                    ratios[1],
                )
            )
    columns = ("numpy p50 ms", "p95", "compiled p50 ms", "p95", "of numpy", "target", "MaxSim numpy", "compiled")
    return table(("tokens", "codec", "MB read", *columns), rows)


def in_turns(call: Callable[[], object], turns: int = 5) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms by numpy and by the compiled loops, in turns: medians over the turns."""
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(turns):
        for use, measured in times.items():
            compiled.enable(use)
            measured.append(milliseconds(call, repeat=40))
    by_numpy, by_loops = (
        tuple(statistics.median(column) for column in zip(*rows, strict=True)) for rows in times.values()
    )
    return (by_numpy[0], by_numpy[1]), (by_loops[0], by_loops[1])


def naive_table(random: np.random.Generator) -> str:
    spectral = SpectralRescorer()
    query = unit_rows(random, 1)
    documents = [unit_rows(random, 256) for _ in range(DOCUMENTS)]
    few = 5
    start = time.perf_counter()
    wanted = [naive(query[0], matrix) for matrix in documents[:few]]
    slow = (time.perf_counter() - start) * 1000 * DOCUMENTS / few
    rows = [("every component convolved (the paper's pseudocode)", f"{slow:,.0f}", "1", "")]
    for name, with_norms, loops in (
        ("norms computed per query, numpy", False, False),
        ("norms computed per query, compiled", False, True),
        ("norms stored at ingest, numpy", True, False),
        ("norms stored at ingest, compiled", True, True),
    ):
        compiled.enable(loops)
        repeat, windows_needed = (100, 1) if with_norms else (5, 6)  # computed norms are kept: one call a window
        windows = [window_of(documents, "float32", with_norms=with_norms) for _ in range(windows_needed)]
        p50, _ = milliseconds(partial(_score_next, spectral, query, cycle(windows)), repeat=repeat, warmup=1)
        found = spectral.score(Query("", query), windows[0], SpectralParams())
        error = float(np.max(np.abs(found[:few] - np.array(wanted))))
        rows.append((name, f"{p50:,.2f}", f"{slow / p50:,.0f}", f"{error:.0e}"))
    return table(("100 documents of 256 tokens, float32", "ms", "times faster", "greatest difference"), rows)


def _score_next(spectral: SpectralRescorer, query: Float32, windows: Iterator[Window]) -> Float32:
    return spectral.score(Query("", query), next(windows), SpectralParams())


def toeplitz_norms(tokens: Float32) -> Float32:
    """The rival: one product with the Toeplitz matrices of all kernels, then the rows' lengths."""
    length, scales = len(tokens), DEFAULT_SCALES[1:]
    start = same_start(length)
    diagonals = np.zeros((len(scales), 2 * length - 1), dtype=np.float32)
    diagonals[:, start : start + length] = kernel_bank(length, scales)[:, ::-1]
    matrices = sliding_window_view(diagonals, length, axis=1)[:, ::-1].reshape(-1, length)
    smoothed = matrices @ tokens
    lengths: Float32 = np.sqrt(np.einsum("ij,ij->i", smoothed, smoothed)).reshape(len(scales), length)
    return lengths


def norms_table(random: np.random.Generator) -> str:
    rows = []
    for length in (16, 64, 128, 192, 256, 384, 512, 1024):
        tokens = unit_rows(random, length)
        np.testing.assert_allclose(toeplitz_norms(tokens), scale_norms(tokens, DEFAULT_SCALES).values, atol=1e-6)
        compiled.enable(False)
        by_numpy, _ = milliseconds(partial(scale_norms, tokens, DEFAULT_SCALES), repeat=15)
        compiled.enable()
        by_loops, _ = milliseconds(partial(scale_norms, tokens, DEFAULT_SCALES), repeat=15)
        rival, _ = milliseconds(partial(toeplitz_norms, tokens), repeat=15)
        rows.append((length, f"{by_loops:.2f}", f"{by_numpy:.2f}", f"{rival:.2f}", f"{4 * 7 * length / 1024:.1f}"))
    return table(("tokens", "compiled ms", "numpy ms", "matrix product ms", "KiB stored"), rows)


def main() -> None:
    random = np.random.default_rng(0)
    data = f"random unit vectors of {DIMS} components, default grid (8 scales)"
    print(heading("Spectral kernel", data=data, packages=("numpy",)))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    print(kernel_table(random))
    print(naive_table(random))
    print("Norms of one document at ingest:\n")
    print(norms_table(random))


if __name__ == "__main__":
    main()

"""How the time of spectral rescoring grows: with the window, the documents' length, the scales, and the clients.

    python -m benchmarks.growth --engine http://127.0.0.1:9200

The kernel is timed alone in this process, by compiled loops where there are some. What it adds to a search, and
how many searches a second clients get, is measured through a gateway whose memory holds the features. Documents carry
random int8 token vectors of 384 components; a window wider than 500 documents repeats their matrices (49 MB of them,
more than the cores' own caches).
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from benchmarks.common import heading, milliseconds, table
from benchmarks.figures import BAR, INK, MUTED, STRONG, figure, save
from benchmarks.served import (
    DIMS,
    GROUPS,
    TOKENS,
    WINDOW,
    Client,
    answered,
    delete,
    fill,
    gateway,
    opened,
    query,
)
from es_ttc.rescorers import compiled
from es_ttc.rescorers.base import Query, Window
from es_ttc.rescorers.spectral import DEFAULT_SCALES, SpectralParams, SpectralRescorer, scale_norms
from es_ttc.vectors.quantise import dequantise, quantise
from es_ttc.vectors.tokens import Float32

INDEX = "benchmark-growth"
WINDOWS = (10, 30, 100, 300, 1000, 3000, 10_000)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
GRID = (*DEFAULT_SCALES, 40.0, 50.0, 60.0, 80.0, 100.0, 120.0, 160.0, 200.0)
SCALES = (1, 2, 4, 8, 12, 16)
CLIENTS = (1, 2, 4, 8, 16, 32)
DISTINCT = 500
SECONDS = 3.0


class Clients(NamedTuple):
    """What clients got who searched at the same time: answers a second, and the median of their times in ms."""

    rate: float
    p50: float


class Growth(NamedTuple):
    """Milliseconds by window, by tokens and by scales of the kernel, by window at the gateway; and the clients'."""

    window: dict[int, float]
    served: dict[int, float]
    tokens: dict[int, float]
    scales: dict[int, float]
    clients: dict[int, Clients]


def main() -> None:
    """Print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    arguments = parser.parse_args()
    loops = "compiled loops" if compiled.enabled() else "numpy"
    random = np.random.default_rng(0)
    window, tokens, scales = by_window(random), by_tokens(random), by_scales(random)
    asyncio.run(_prepare(arguments.engine))
    try:
        with gateway(arguments.engine, default_timeout_ms=30_000) as running:
            served = by_served_window(arguments.engine, running.url)
            clients = by_clients(running.url)
    finally:
        asyncio.run(_clear(arguments.engine))
    growth = Growth(window, served, tokens, scales, clients)
    print(heading("How spectral rescoring grows", data=f"random int8 vectors of {DIMS} components, {loops}, loopback"))
    for title, columns, rows in _tables(growth):
        print(f"{title}\n\n{table(columns, rows)}")
    draw(growth)


def by_window(random: np.random.Generator) -> dict[int, float]:
    """Time the kernel for windows of documents of 256 tokens."""
    documents = [unit_rows(random, TOKENS) for _ in range(DISTINCT)]
    whole = window_of(documents, DEFAULT_SCALES)
    return {size: _kernel(_repeated(whole, size), DEFAULT_SCALES) for size in WINDOWS}


def by_tokens(random: np.random.Generator) -> dict[int, float]:
    """Time the kernel for 100 documents of one length."""
    return {
        length: _kernel(window_of([unit_rows(random, length) for _ in range(WINDOW)], DEFAULT_SCALES), DEFAULT_SCALES)
        for length in LENGTHS
    }


def by_scales(random: np.random.Generator) -> dict[int, float]:
    """Time the kernel for 100 documents of 256 tokens read at ever more scales."""
    documents = [unit_rows(random, TOKENS) for _ in range(WINDOW)]
    return {count: _kernel(window_of(documents, GRID[:count]), GRID[:count]) for count in SCALES}


def by_served_window(engine: str, url: str, repeat: int = 15) -> dict[int, float]:
    """Return what rescoring adds to a search of ten hits, by window, as far as the index has documents."""
    added = {}
    with Client(engine) as direct, Client(url) as through:
        for size in (window for window in WINDOWS if window <= 1000):
            plain, ours = query(None, rescore=False), query(None, rescore=True, window=size)
            times: dict[str, list[float]] = {"plain": [], "ours": []}
            for turn in range(repeat + 2):
                for name, client, body in (("plain", direct, plain), ("ours", through, ours)):
                    started = time.perf_counter()
                    answer = client.search(body, INDEX)
                    if turn > 1:  # the first ones fill the memory
                        times[name].append((time.perf_counter() - started) * 1000)
                    assert name == "plain" or answer["ttc"]["scored"] == size, answer["ttc"]
            added[size] = statistics.median(times["ours"]) - statistics.median(times["plain"])
    return added


def by_clients(url: str) -> dict[int, Clients]:
    """Let ever more clients search a window of 100 documents at the same time."""
    body = query(0, rescore=True)
    measured = {}
    for count in CLIENTS:
        times = asyncio.run(answered(url, INDEX, body, connections=count, seconds=SECONDS))
        measured[count] = Clients(len(times) / SECONDS, statistics.median(times))
    return measured


def unit_rows(random: np.random.Generator, rows: int) -> Float32:
    matrix = random.standard_normal((rows, DIMS), dtype=np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix


def window_of(documents: Sequence[Float32], scales: tuple[float, ...]) -> Window:
    """Return documents as ingest stores them."""
    tokens = [quantise(matrix, "int8") for matrix in documents]
    norms = [scale_norms(dequantise(document), scales) for document in tokens]
    return Window([str(place) for place in range(len(tokens))], np.zeros(len(tokens), np.float32), None, tokens, norms)


def _repeated(window: Window, size: int) -> Window:
    assert window.tokens is not None
    assert window.norms is not None
    places = [place % len(window) for place in range(size)]
    tokens, norms = [window.tokens[place] for place in places], [window.norms[place] for place in places]
    return Window([str(place) for place in range(size)], np.zeros(size, np.float32), None, tokens, norms)


def _kernel(window: Window, scales: tuple[float, ...]) -> float:
    assert window.tokens is not None
    vector = unit_rows(np.random.default_rng(1), 1)
    cells = sum(map(len, window.tokens))
    call = partial(SpectralRescorer().score, Query("", vector), window, SpectralParams(scales=scales))
    median, _ = milliseconds(call, repeat=max(5, min(60, 3_000_000 // cells)))
    return median


async def _prepare(url: str) -> None:
    async with opened(url) as engine:
        await fill(engine, INDEX, groups=GROUPS)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def _tables(growth: Growth) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    rows: list[tuple[str, ...]] = [
        (
            f"{size:,}",
            f"{ms:.2f}",
            f"{ms * 1000 / size:.0f}",
            f"{growth.served[size]:.1f}" if size in growth.served else "",
        )
        for size, ms in growth.window.items()
    ]
    clients: list[tuple[str, ...]] = [
        (str(count), f"{each.rate:.0f}", f"{each.p50:.1f}") for count, each in growth.clients.items()
    ]
    return [
        (
            f"Window, documents of {TOKENS} tokens",
            ("documents", "kernel ms", "us a document", "added at the gateway, warm, ms"),
            rows,
        ),
        (f"Tokens a document, {WINDOW} documents", ("tokens", "kernel ms"), _pairs(growth.tokens)),
        (f"Scales, {WINDOW} documents of {TOKENS} tokens", ("scales", "kernel ms"), _pairs(growth.scales)),
        (
            f"Clients at the same time, window {WINDOW}, whole searches",
            ("clients", "searches/s", "p50 ms"),
            clients,
        ),
    ]


def _pairs(times: Mapping[int, float]) -> list[tuple[str, ...]]:
    return [(f"{size:,}", f"{ms:.2f}") for size, ms in times.items()]


def draw(growth: Growth) -> None:
    """Draw one panel a quantity; both axes are logarithmic but for scales."""
    with figure(9.2, 6.2) as drawn:
        (window, tokens), (scales, clients) = drawn.subplots(2, 2)
        _curve(window, growth.window, "kernel alone", STRONG)
        _curve(window, growth.served, "added to a search, warm", BAR)
        _panel(window, f"window: documents of {TOKENS} tokens", growth.window)
        window.legend(frameon=False, labelcolor=INK, loc="upper left")
        _curve(tokens, growth.tokens, "kernel alone", STRONG)
        _panel(tokens, f"tokens a document, {WINDOW} documents", growth.tokens)
        _curve(scales, growth.scales, "kernel alone", STRONG)
        _panel(scales, f"scales, {WINDOW} documents of {TOKENS} tokens", growth.scales, logarithmic=False)
        _curve(clients, {count: each.p50 for count, each in growth.clients.items()}, "median time of a search", STRONG)
        _panel(clients, f"clients at the same time, window {WINDOW}", growth.clients)
        for count, each in growth.clients.items():
            clients.annotate(
                f"{each.rate:.0f}/s", (count, each.p50), (0, 8), textcoords="offset points", ha="center", color=MUTED
            )
        save(drawn, "growth.svg")


def _curve(axes: Axes, points: Mapping[int, float], label: str, colour: str) -> None:
    axes.plot(list(points), list(points.values()), color=colour, marker="o", markersize=4, linewidth=1.6, label=label)


def _panel(axes: Axes, title: str, points: Mapping[int, object], *, logarithmic: bool = True) -> None:
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.margins(x=0.08, y=0.2)
    else:
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.set_xticks(list(points), [f"{size:,}" for size in points])
    axes.minorticks_off()
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_ylabel("ms", color=MUTED)
    axes.grid(axis="y", color=BAR, linewidth=0.4)


if __name__ == "__main__":
    main()

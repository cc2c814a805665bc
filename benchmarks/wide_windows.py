"""What rescoring wide windows adds to a search, up to 10,000 documents. Needs a running engine.

    python -m benchmarks.wide_windows --engine http://127.0.0.1:9200

10,000 documents of 256 tokens x 384, int8, or of many lengths with `--least 16`; searches of ten hits, all features in
the gateway's memory. Windows take turns with the same search to the engine alone. Where the gateway's processor time
goes: its event loop's thread, and the threads that score.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence

import psutil

from benchmarks.common import heading, table
from benchmarks.served import DIMS, TOKENS, WINDOW, Client, delete, fill, gateway, opened, percentiles, query

INDEX = "benchmark-wide-windows"
WINDOWS = (100, 300, 1000, 3000, 10_000)
TURNS = 40
WARM = 5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS)
    parser.add_argument("--least", type=int, default=TOKENS, help="tokens of the shortest document")
    arguments = parser.parse_args()
    asyncio.run(_prepare(arguments.engine, max(arguments.windows), arguments.least))
    try:
        settings = {"max_window": max(arguments.windows), "feature_cache_mb": 8192, "default_timeout_ms": 30_000}
        with gateway(arguments.engine, **settings) as served:
            rows = measured(arguments.engine, served.url, arguments.windows)
    finally:
        asyncio.run(_clear(arguments.engine))
    lengths = f"{arguments.least} to {2 * TOKENS - arguments.least}" if arguments.least < TOKENS else f"{TOKENS}"
    data = f"{max(arguments.windows):,} documents of {lengths} tokens x {DIMS}, int8"
    print(heading("Wide windows", data=data, packages=("numpy", "aiohttp", "uvicorn")))
    columns = ("window", "added p50 ms", "p95", "event loop, processor ms", "scoring threads, processor ms")
    print(table(columns, rows))


def measured(engine: str, url: str, windows: Sequence[int]) -> list[tuple[str, ...]]:
    """Return a row for each window."""
    plain = query(None, rescore=False)
    alone: list[float] = []
    times: dict[int, list[float]] = {size: [] for size in windows}
    threads: dict[int, list[tuple[float, float]]] = {size: [] for size in windows}
    process = _serving(url)
    with Client(engine) as direct, Client(url) as through:
        for turn in range(TURNS + WARM):
            for size in windows:
                body = query(None, rescore=True, window=size)
                begun, before = time.perf_counter(), _processor_times(process)
                answer = through.search(body, INDEX)
                ms, after = (time.perf_counter() - begun) * 1000, _processor_times(process)
                assert answer["ttc"]["scored"] == size, answer["ttc"]
                begun = time.perf_counter()
                direct.search(plain, INDEX)
                if turn >= WARM:
                    alone.append((time.perf_counter() - begun) * 1000)
                    times[size].append(ms)
                    threads[size].append(_spent(before, after, process.pid))
    rows: list[tuple[str, ...]] = []
    for size in windows:
        p50, p95 = percentiles(times[size])
        engine_alone = statistics.median(alone)
        loop, scoring = (statistics.mean(one) * 1000 for one in zip(*threads[size], strict=True))
        rows.append(
            (f"{size:,}", f"{p50 - engine_alone:.1f}", f"{p95 - engine_alone:.1f}", f"{loop:.1f}", f"{scoring:.1f}")
        )
    return rows


def _serving(url: str) -> psutil.Process:
    """Return the gateway's process, which listens at the URL's port."""
    port = int(url.rpartition(":")[2])
    return next(
        child
        for child in psutil.Process().children(recursive=True)
        if any(one.laddr.port == port for one in child.net_connections())
    )


def _processor_times(process: psutil.Process) -> dict[int, float]:
    """Return the processor time of each thread, in s; the system counts it in hundredths."""
    return {thread.id: thread.user_time + thread.system_time for thread in process.threads()}


def _spent(before: Mapping[int, float], after: Mapping[int, float], main: int) -> tuple[float, float]:
    """Return the seconds that the main thread and all others spent."""
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
    return spent[main], sum(spent.values()) - spent[main]


async def _prepare(url: str, documents: int, least: int) -> None:
    async with opened(url) as engine:
        await fill(engine, INDEX, groups=-(-documents // WINDOW), least=least)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()

"""Several worker processes of one gateway: searches a second, processor time and memory. Needs a running engine.

    python -m benchmarks.workers --engine http://127.0.0.1:9200

Sixteen clients of one process of their own send warm spectral searches of window 100. Gateways with different numbers
of workers are measured in turns, each beside the engine alone. On a machine with few cores, engine, client and gateway
share them: the processor time of a search then says more than the rate.
"""

import argparse
import asyncio
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context

import psutil

from benchmarks.common import heading, table
from benchmarks.served import (
    GROUPS,
    TOKENS,
    WINDOW,
    Client,
    Gateway,
    answered,
    delete,
    fill,
    gateway,
    opened,
    percentiles,
    query,
)

INDEX = "benchmark-workers"
CONNECTIONS = 16
SECONDS = 5.0
TURNS = 3


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, separated by commas")
    options = parser.parse_args()
    counts = [int(count) for count in options.workers.split(",")]
    asyncio.run(_fill(options.engine))
    try:
        with ExitStack() as stack:
            gateways = {count: stack.enter_context(gateway(options.engine, workers=count)) for count in counts}
            clients = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            _report(options.engine, gateways, clients)
    finally:
        asyncio.run(_clear(options.engine))


def _report(engine: str, gateways: dict[int, Gateway], clients: ProcessPoolExecutor) -> None:
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, loopback"
    print(heading("Worker processes", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    plain, ours = query(None, rescore=False), query(0, rescore=True)
    reads = {count: _read_everything(each.url) for count, each in gateways.items()}
    rates: dict[int, list[tuple[float, float, float, float, float]]] = {count: [] for count in gateways}
    for turn in range(TURNS + 1):
        for count, each in gateways.items():
            direct = clients.submit(run, engine, plain).result()
            before = _processor_seconds(each)
            times = clients.submit(run, each.url, ours).result()
            spent = _processor_seconds(each) - before
            if turn:  # the first one starts threads and lets the engine compile
                p50, p95 = percentiles(times)
                rates[count].append(
                    (len(times) / SECONDS, len(times) / len(direct), p50, p95, 1000 * spent / len(times))
                )
    rows = []
    for count, each in gateways.items():
        rate, share, p50, p95, spent = (statistics.median(values) for values in zip(*rates[count], strict=True))
        rows.append(
            (
                str(count), f"{rate:.0f}", f"{share:.3f}", f"{p50:.0f}", f"{p95:.0f}", f"{spent:.2f}",
                f"{_memory(each) / 2**20:.0f}", f"{reads[count]:.0f}",
            )
        )  # fmt: skip
    columns = (
        "workers", "searches/s", "of direct", "p50 ms", "p95 ms", "processor ms a search", "memory MiB",
        "features read",
    )  # fmt: skip
    print(table(columns, rows))


def run(url: str, body: bytes) -> list[float]:
    """Return the times of all answers in :data:`SECONDS`; this runs in the clients' process."""
    return asyncio.run(answered(url, INDEX, body, connections=CONNECTIONS, seconds=SECONDS))


def _read_everything(url: str) -> float:
    """Search all windows with many connections; return how many features were read from the engine."""
    for _ in range(4):
        for group in range(GROUPS):
            with Client(url) as client:
                assert client.search(query(group, rescore=True), INDEX)["ttc"]["applied"]
    time.sleep(1.5)  # metrics of other processes are a second old
    with Client(url) as client:
        return client.metric("es_ttc_feature_cache_misses_total")


def _processes(each: Gateway) -> list[psutil.Process]:
    parent = psutil.Process(each.pid)
    return [parent, *parent.children(recursive=True)]


def _processor_seconds(each: Gateway) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in _processes(each)))


def _memory(each: Gateway) -> float:
    """Return the memory of a gateway's processes; what they share counts once."""
    return float(sum(process.memory_full_info().pss for process in _processes(each)))


async def _fill(url: str) -> None:
    async with opened(url) as engine:
        await fill(engine, INDEX)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()

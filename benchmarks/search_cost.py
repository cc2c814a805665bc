"""The processor time of a search, of gateway and engine apart. Needs a running engine.

    python -m benchmarks.search_cost --engine http://127.0.0.1:9200

Warm searches of window 100, documents of 256 tokens, in an index whose segments are merged. The kinds of searches are
measured in turns. The engine must run on this machine: its process is the one that listens on the URL's port.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil

from benchmarks.bare_servers import running
from benchmarks.common import heading, table
from benchmarks.served import (
    GROUPS,
    QUERY,
    TOKENS,
    WINDOW,
    Client,
    Gateway,
    answered,
    delete,
    fill,
    gateway,
    opened,
    query,
)
from es_ttc.index.mappings.merging import merge_segments

INDEX = "benchmark-search-cost"
CLIENTS = (1, 8)
SECONDS = 3.0
TURNS = 4
METHODS = ("hybrid", "spectral", "blend")
PARTS = {"aggs": {"shelves": {"terms": {"field": "shelf"}}}, "collapse": {"field": "shelf"}}
"""Parts of a search that cost blend a further request, because candidates join."""


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    options = parser.parse_args()
    asyncio.run(_fill(options.engine))
    try:
        with gateway(options.engine) as served, running("two-requests", options.engine) as least:
            _report(options.engine, served, least)
    finally:
        asyncio.run(_clear(options.engine))


def _report(engine: str, served: Gateway, least: Gateway) -> None:
    with Client(served.url) as client:
        for method in METHODS:
            for _ in range(5):
                for group in range(GROUPS):
                    assert client.search(body_of(method, group), INDEX)["ttc"]["applied"]
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, merged, loopback"
    print(heading("Processor time of a search", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    columns = ("search", "clients", "p50 ms", "gateway, processor ms", "engine, processor ms", "searches/s")
    print(table(columns, _costs(engine, served, least)))


async def _fill(url: str) -> None:
    async with opened(url) as engine:
        await fill(engine, INDEX)
        await merge_segments(engine, INDEX)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def body_of(method: str | None, group: int, **parts: Any) -> bytes:
    """Return a search of a group's documents, ten hits with `_source`; without rescoring where no method is named."""
    body = orjson.loads(query(group, rescore=False)) | parts
    del body["_source"]
    if method is not None:
        body["rescore"] = {"window_size": WINDOW, "ttc": {"method": method, "query_text": QUERY}}
    return orjson.dumps(body)


def _costs(engine: str, served: Gateway, least: Gateway) -> Sequence[tuple[str, ...]]:
    """Return the medians of the turns: ms, processor time in ms of gateway and engine, searches a second."""
    searches = {
        "BM25, the engine alone": (engine, body_of(None, 0)),
        "BM25, passed through": (served.url, body_of(None, 0)),
        "two requests and JSON alone": (least.url, body_of("spectral", 0)),
        **{method: (served.url, body_of(method, 0)) for method in METHODS},
    }
    for part, value in PARTS.items():
        searches[f"BM25, the engine alone, `{part}`"] = (engine, body_of(None, 0, **{part: value}))
        searches[f"blend, `{part}`"] = (served.url, body_of("blend", 0, **{part: value}))
    gateways = [_clock(served.pid), _clock(least.pid)]  # one of them answers
    spent = {"gateway": lambda: sum(clock() for clock in gateways), "engine": _clock(_listener(engine))}
    rows = []
    for clients in CLIENTS:
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in searches}
        for turn in range(TURNS + 1):
            for name, (url, body) in searches.items():
                before = [clock() for clock in spent.values()]
                times = asyncio.run(answered(url, INDEX, body, connections=clients, seconds=SECONDS))
                used = [1000 * (clock() - at) / len(times) for clock, at in zip(spent.values(), before, strict=True)]
                if turn:
                    found[name].append((statistics.median(times), *used, len(times) / SECONDS))
        for name, turns in found.items():
            p50, ours, theirs, rate = (statistics.median(values) for values in zip(*turns, strict=True))
            rows.append((name, str(clients), f"{p50:.1f}", f"{ours:.2f}", f"{theirs:.2f}", f"{rate:.0f}"))
    return rows


def _clock(pid: int) -> Callable[[], float]:
    """Return a function that returns a process's processor time, in seconds."""
    process = psutil.Process(pid)

    def seconds() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    return seconds


def _listener(url: str) -> int:
    """Return the process that listens on a URL's port; of another user only for root."""
    port = urlsplit(url).port
    for one in psutil.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN and one.laddr and one.pid is not None and one.laddr.port == port:
            return one.pid
    raise SystemExit(f"no process of this machine listens on port {port}: run this where the engine runs, as root")


if __name__ == "__main__":
    main()

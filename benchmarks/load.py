"""What searches get when many clients search at once: rates, times, what blend gave up, memory. Needs a running engine.

    python -m benchmarks.load --engine http://127.0.0.1:9200 [--before ../before] [--clients 1,8,20,80,200]

Clients send one request after the other: of ten, six are blends of one word, one a blend with an aggregation, one an
`_msearch` of three blends, and two plain searches. Beside them one client sends plain searches through the gateway and
to the engine in turns, and asks for the gateway's health: what the gateway adds under load. All features are in the
gateway's memory. `--before` is the folder of another version, whose gateways take turns with those of this one.
"""

import argparse
import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks.common import heading, table
from benchmarks.served import GROUPS, QUERY, WINDOW, Gateway, delete, fill, gateway, opened, query
from es_ttc.index.mappings.merging import merge_segments

INDEX = "benchmark-load"
HERE = Path(__file__).parents[1]
TEXTS = 50
"""Number of query texts: after a short time all are encoded."""
WARM_UP_SECONDS = 5.0
PROBE_SECONDS = 0.05
JSON = {"content-type": "application/json"}
RUNGS = ("full", "no_tokens", "no_candidates", "first_pass")


@dataclass(slots=True)
class Answers:
    """What clients got.

    Attributes:
        ms: Times of all requests.
        searches: Number of blends by what they gave up; `late` for those that were answered with the first pass after
            their budget.
        refused: Number of requests that were not answered with 200.
        added: Times of plain searches through the gateway and to the engine, and of the gateway's health.
    """

    ms: list[float] = field(default_factory=list)
    searches: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    added: dict[str, list[float]] = field(default_factory=lambda: {"gateway": [], "engine": [], "health": []})

    def add(self, response: Any) -> None:
        """Count the searches of a response."""
        for one in response.get("responses", (response,)):
            summary = one.get("ttc")
            if summary is not None:
                rung = summary.get("load", {}).get("rung", "full" if summary["applied"] else "late")
                self.searches[rung] += 1


def main() -> None:
    """Run and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--before", type=Path, help="folder of another version, with its compiled loops")
    parser.add_argument("--clients", default="1,8,20,80,200")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    product = asyncio.run(_fill(arguments.engine))
    folders = {"now": HERE} | ({"before": arguments.before} if arguments.before else {})
    data = f"{GROUPS} x {WINDOW} documents of 256 tokens x 384, {product}, loopback"
    print(heading("Load", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    columns = (
        "version", "processes", "clients", "requests/s", "blends/s", "p50 ms", "p95", "p99", *RUNGS, "late",
        "refused", "added to a plain search, p50 / p95 ms", "health, p95 ms", "MiB",
    )  # fmt: skip
    rows = []
    try:
        for workers in map(int, arguments.workers.split(",")):
            with ExitStack() as stack:
                served = {
                    name: stack.enter_context(gateway(arguments.engine, folder=folder, workers=workers))
                    for name, folder in folders.items()
                }
                for one in served.values():
                    asyncio.run(_answered(arguments.engine, one.url, clients=8, seconds=WARM_UP_SECONDS))
                for clients in map(int, arguments.clients.split(",")):
                    for name, one in served.items():
                        got = asyncio.run(
                            _answered(arguments.engine, one.url, clients=clients, seconds=arguments.seconds)
                        )
                        rows.append((name, workers, clients, *_row(got, arguments.seconds), _mib(one)))
    finally:
        asyncio.run(_clear(arguments.engine))
    print(table(columns, rows))


async def _fill(url: str) -> str:
    async with opened(url) as engine:
        await fill(engine, INDEX)
        await merge_segments(engine, INDEX)
        return f"{engine.product} {'.'.join(map(str, (await engine.capabilities()).version))}"


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def _row(got: Answers, seconds: float) -> Sequence[str]:
    blends = got.searches.total()
    through, direct = sorted(got.added["gateway"]), sorted(got.added["engine"])
    return (
        f"{len(got.ms) / seconds:.0f}",
        f"{blends / seconds:.0f}",
        *(f"{_at(sorted(got.ms), share):.0f}" for share in (0.5, 0.95, 0.99)),
        *(f"{got.searches[rung] / max(blends, 1):.0%}" for rung in (*RUNGS, "late")),
        str(got.refused),
        " / ".join(f"{_at(through, share) - _at(direct, share):.1f}" for share in (0.5, 0.95)),
        f"{_at(sorted(got.added['health']), 0.95):.1f}",
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _mib(served: Gateway) -> str:
    """Return the memory of a gateway's processes; what they share is divided among them."""
    answering = psutil.Process(served.pid)
    first = answering.parent()
    processes = [answering] if first is None or first.pid == os.getpid() else [first, *first.children()]
    return f"{sum(one.memory_full_info().pss for one in processes) / 2**20:.0f}"


async def _answered(engine: str, url: str, *, clients: int, seconds: float) -> Answers:
    """Return what clients of a gateway get in so many seconds."""
    got, end = Answers(), time.perf_counter() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(
            *(_client(session, url, number, got, end) for number in range(clients)),
            _probe(session, engine, url, got, end),
        )
    return got


async def _client(session: aiohttp.ClientSession, url: str, number: int, got: Answers, end: float) -> None:
    turn = number * 7
    while (started := time.perf_counter()) < end:
        path, body = _request(turn)
        async with session.post(f"{url}{path}", data=body, headers=JSON) as response:
            answer = await response.read()
        got.ms.append((time.perf_counter() - started) * 1000)
        if response.status == 200:
            got.add(orjson.loads(answer))
        else:
            got.refused += 1
        turn += 1


async def _probe(session: aiohttp.ClientSession, engine: str, url: str, got: Answers, end: float) -> None:
    body = query(0, rescore=False)
    while time.perf_counter() < end:
        for name, base in (("gateway", url), ("engine", engine)):
            started = time.perf_counter()
            async with session.post(f"{base}/{INDEX}/_search", data=body, headers=JSON) as response:
                await response.read()
            got.added[name].append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        async with session.get(f"{url}/_ttc/health") as response:
            await response.read()
        got.added["health"].append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(PROBE_SECONDS)


def _request(turn: int) -> tuple[str, bytes]:
    """Return the path and body of a client's request."""
    kind = turn % 10
    if kind < 2:
        return f"/{INDEX}/_search", query(turn % GROUPS, rescore=False)
    if kind == 2:
        blends = [line for number in range(3) for line in ({}, _blend(turn + number))]
        return f"/{INDEX}/_msearch", b"".join(orjson.dumps(line) + b"\n" for line in blends)
    aggregations = {"aggs": {"shelves": {"terms": {"field": "shelf"}}}} if kind == 3 else {}
    return f"/{INDEX}/_search", orjson.dumps(_blend(turn) | aggregations)


def _blend(turn: int) -> dict[str, Any]:
    text = f"{QUERY} {turn % TEXTS}"
    body: dict[str, Any] = orjson.loads(query(turn % GROUPS, rescore=False))
    return body | {"rescore": {"window_size": WINDOW, "ttc": {"method": "blend", "query_text": text}}}


if __name__ == "__main__":
    main()

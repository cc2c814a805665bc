"""Where the processor time of a search goes that passes through the gateway. Needs a running engine.

    python -m benchmarks.pass_through --engine http://127.0.0.1:9200

Sixteen connections ask for ten hits, through the gateway and around it, through a proxy of a few lines on the same
server and HTTP client (what any Python gateway on them costs at least), and of that server alone, which answers a
constant of the same size. Each is a process of its own. Processor time of a request hardly depends on what else the
machine does, where rates do; with every core busy the rate through the gateway is to the engine's own as the processor
time of engine and client is to that of all three.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import aiohttp
import orjson
import psutil

from benchmarks.bare_servers import running
from benchmarks.common import heading, table
from benchmarks.served import Client, bulk, delete, gateway, opened
from es_ttc.engine.protocol import Engine

INDEX = "benchmark-pass-through"
CONNECTIONS = 16
REQUESTS = 4000
TURNS = 5
_STATS_SECONDS = 1.1
"""The engines look at their own processor time once a second at most."""
BODY = orjson.dumps({"query": {"match": {"text": "word"}}, "size": 10})
PATH = f"/{INDEX}/_search"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor time of one request, in microseconds, and requests a second."""

    server: float
    engine: float
    client: float
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    arguments = parser.parse_args()
    asyncio.run(_fill(arguments.engine))
    try:
        _report(arguments.engine)
    finally:
        asyncio.run(_clear(arguments.engine))


async def _fill(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)
        await engine.create_index(INDEX, {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        text = orjson.dumps({"text": "some words of a text, one word after the other " * 5})
        await bulk(engine, INDEX, [line for one in range(100) for line in (b'{"index":{"_id":"%d"}}' % one, text)])
        await engine.refresh(INDEX)


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


def _report(engine: str) -> None:
    with ExitStack() as stack:
        through = stack.enter_context(gateway(engine, compiled=False))
        with Client(engine) as client:
            answer = orjson.dumps(client.search(BODY, INDEX))
        started = {
            "the gateway": through,
            "a proxy of a few lines": stack.enter_context(running("proxy", engine)),
            "the server alone": stack.enter_context(running("constant", engine, answer=answer)),
        }
        servers: dict[str, tuple[str, psutil.Process | None]] = {"engine alone": (engine, None)}
        servers |= {name: (one.url, psutil.Process(one.pid)) for name, one in started.items()}
        runs: dict[str, list[Measured]] = {name: [] for name in servers}
        for turn in range(TURNS + 1):
            for name, (url, process) in servers.items():
                measured = asyncio.run(_measure(engine, url, process))
                if turn:  # the first one warms up
                    runs[name].append(measured)
    medians = {
        name: Measured(*(statistics.median(getattr(one, part) for one in several) for part in Measured.__slots__))
        for name, several in runs.items()
    }
    print(heading("Pass-through", data=f"{CONNECTIONS} connections, ten hits a search", packages=_PACKAGES))
    print(f"Load average: {os.getloadavg()[0]:.1f}\n")
    print(table(("µs of processor time a request", "it", "engine", "client", "requests/s"), _rows(medians)))
    print(table(("of the gateway's processor time", "µs", "share"), _parts(medians)))
    direct, passed = medians["engine alone"], medians["the gateway"]
    bound = (direct.engine + direct.client) / (passed.server + passed.engine + passed.client)
    print(f"Rate of the engine's own: {passed.rate / direct.rate:.2f}; by processor time alone: {bound:.2f}")


_PACKAGES = ("uvicorn", "uvloop", "httptools", "aiohttp")


def _rows(medians: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    return [
        (name, f"{one.server:.0f}" if one.server else "", f"{one.engine:.0f}", f"{one.client:.0f}", f"{one.rate:.0f}")
        for name, one in medians.items()
    ]


def _parts(medians: Mapping[str, Measured]) -> list[tuple[str, ...]]:
    server, bare, whole = (
        medians[name].server for name in ("the server alone", "a proxy of a few lines", "the gateway")
    )
    parts = (
        ("reading requests and writing answers (uvicorn, httptools, uvloop)", server),
        ("asking the engine (aiohttp)", bare - server),
        ("the gateway's own code", whole - bare),
    )
    return [(name, f"{value:.0f}", f"{100 * value / whole:.0f} %") for name, value in parts]


async def _measure(engine: str, url: str, process: psutil.Process | None) -> Measured:
    left = REQUESTS
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with opened(engine) as admin, aiohttp.ClientSession(connector=connector) as session:

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                async with session.post(url + PATH, data=BODY, headers=JSON) as response:
                    await response.read()
                    assert response.status == 200, response.status

        before = await _engine_seconds(admin), _seconds(process), time.process_time(), time.perf_counter()
        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
        after = time.perf_counter(), time.process_time(), _seconds(process), await _engine_seconds(admin)
    elapsed, own, server, engines = (late - early for late, early in zip(after, reversed(before), strict=True))
    per_request = 1e6 / REQUESTS
    return Measured(server * per_request, engines * per_request, own * per_request, REQUESTS / elapsed)


async def _engine_seconds(admin: Engine) -> float:
    await asyncio.sleep(_STATS_SECONDS)
    answer = await admin.request("GET", "/_nodes/stats/process")
    return float(sum(node["process"]["cpu"]["total_in_millis"] for node in answer["nodes"].values())) / 1000


def _seconds(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()

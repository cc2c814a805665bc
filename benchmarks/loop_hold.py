"""How long single requests hold the gateway's event loop, so that nobody else is answered.

    python -m benchmarks.loop_hold [--engine URL] [--requests 2000] [--seed 1]

The gateway runs here; another process sends it requests one at a time: first those that are known to be expensive,
then random ones of up to 1 MB (tests/support/fuzz.py). A task that wakes up every millisecond measures how much later
than that it wakes up.
"""

import argparse
import asyncio
import gzip
import json
import logging
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

from benchmarks.common import heading
from es_ttc.serving.app import create_app
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import address_of, bind, server_of
from es_ttc.settings import GatewaySettings
from tests.support.fuzz import Fuzzer
from tests.support.raw_http import connect

_TICK = 0.001
_INDEX = "bench-loop-hold"
_EXPENSIVE: dict[str, bytes] = {
    "nested empty arrays (90 kB of gzip)": gzip.compress(b'{"ttc":{},"x":[' + b"[]," * 30_000_000 + b"[]]}", 9),
    "a million keys in params": b'{"rescore":{"ttc":{"params":{%b}}}}'
    % b",".join(b'"k%d":1' % number for number in range(1_000_000)),
    "a million scales": b'{"rescore":{"ttc":{"params":{"scales":[%b]}}}}' % b",".join([b"1"] * 1_000_000),
    "40 MB of query_text": b'{"query":{"match_all":{}},"rescore":{"ttc":{"method":"spectral","query_text":"%b"}}}'
    % (b"cat " * 10_000_000),
    "100,000 items of an _msearch": b'{}\n{"rescore":{"ttc":{"method":"spectral","query_text":"a"}}}\n' * 100_000,
}


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="an OpenSearch that runs (`es-ttc engine up`)")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(heading("What holds the event loop", data="200 short texts", packages=("uvicorn", "aiohttp", "orjson")))
    configure_logs("json", logging.CRITICAL)
    asyncio.run(_measured(options.engine, options.requests, options.seed))


async def _measured(engine: str, requests: int, seed: int) -> None:
    settings = GatewaySettings(engine=engine, port=0)
    with bind(settings) as listening:
        ready = threading.Event()
        server = server_of(create_app(settings, wait_for_encoder=True), settings, ready.set)
        serving = asyncio.create_task(server.serve([listening]))
        await asyncio.to_thread(ready.wait)
        url, loop = address_of(listening), asyncio.get_running_loop()
        with ProcessPoolExecutor(1, get_context("spawn")) as sender:
            await loop.run_in_executor(sender, prepare, engine)
            print("| request | bytes | answer | answered after, ms | loop held at most, ms |")
            print("| --- | --- | --- | --- | --- |")
            for name, body in _EXPENSIVE.items():
                (status, ms), held = await _held(loop.run_in_executor(sender, send_known, url, name))
                print(f"| {name} | {len(body):,} | {status} | {ms:.0f} | {held * 1000:.0f} |")
            await _random(url, sender, requests, seed)
        server.should_exit = True
        await serving


async def _random(url: str, sender: ProcessPoolExecutor, requests: int, seed: int) -> None:
    """Send random requests one at a time and print how long they held the loop."""
    loop = asyncio.get_running_loop()
    holds: list[tuple[float, int, int]] = []
    for number in range(seed * 10**6, seed * 10**6 + requests):
        (status, _), held = await _held(loop.run_in_executor(sender, send_random, url, number))
        holds.append((held * 1000, status, number))
    holds.sort(reverse=True)
    statuses = dict(Counter(status for _, status, _ in holds))
    p50, p99 = holds[requests // 2][0], holds[requests // 100][0]
    print(
        f"\n{requests} random requests (seed {seed}), by status {statuses}: p50 {p50:.1f} ms, p99 {p99:.1f} ms; most:\n"
    )
    for held, status, number in holds[:5]:
        print(f"- {held:.0f} ms, {status}: {Fuzzer(_INDEX, number).request()[:200]!r}")


async def _held(sending: "asyncio.Future[tuple[int, float]]") -> tuple[tuple[int, float], float]:
    """Return what a request gave, and the longest time that the loop was held meanwhile, in seconds."""
    longest = 0.0
    while not sending.done():
        started = time.perf_counter()
        await asyncio.sleep(_TICK)
        longest = max(longest, time.perf_counter() - started - _TICK)
    return sending.result(), longest


def prepare(engine: str) -> None:
    """Write a few plain documents."""
    lines = b"".join(
        b'{"index":{"_id":"%d"}}\n%b\n' % (number, json.dumps({"text": f"the cat {number}", "n": number}).encode())
        for number in range(200)
    )
    _exchange(engine, f"/{_INDEX}/_bulk?refresh=true", lines, "application/x-ndjson")


def send_known(url: str, name: str) -> tuple[int, float]:
    """Send one of the expensive requests; return its status and the milliseconds until its answer."""
    body = _EXPENSIVE[name]
    path = f"/{_INDEX}/_msearch" if "_msearch" in name else f"/{_INDEX}/_search"
    if "query_text" in name:
        path = "/there-is-no-such-index/_search"
    encoding = "gzip" if "gzip" in name else ""
    return _exchange(url, path, body, "application/json", encoding)


def send_random(url: str, seed: int) -> tuple[int, float]:
    """Send one random request; return its status, 0 for none, and the milliseconds until its answer."""
    data = Fuzzer(_INDEX, seed).request()
    started = time.perf_counter()
    status = 0
    with suppress(OSError), connect(url, timeout=3) as connection:
        connection.sendall(data)
        connection.settimeout(0.5)
        line = connection.recv(65536)[:12].split(b" ")
        status = int(line[1]) if len(line) > 1 and line[1].isdigit() else 0
    return status, (time.perf_counter() - started) * 1000


def _exchange(url: str, path: str, body: bytes, content_type: str, encoding: str = "") -> tuple[int, float]:
    started = time.perf_counter()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {content_type}\r\n"
    head += f"content-encoding: {encoding}\r\n" if encoding else ""
    with connect(url, timeout=300) as connection:
        with suppress(OSError):  # refused before all of it was sent
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        line = connection.recv(65536)[:12].split(b" ")
    return int(line[1]) if len(line) > 1 else 0, (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()

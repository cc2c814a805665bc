"""What a second and a third item of one `rescore` list cost. Needs a running engine.

    python -m benchmarks.cascade --engine http://127.0.0.1:9200

The same searches in turns, warm: windows of 100 documents of 256 tokens, a page of ten. The reranker of `rr` is
`maxsim`, which reads stored vectors, so the figures are those of the list itself and not of an expensive model.
"""

import argparse
import asyncio
import http.client
import os
import time
from collections import defaultdict
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.blend_speed import ours
from benchmarks.common import heading, table
from benchmarks.served import GROUPS, TOKENS, WINDOW, delete, fill, gateway, opened, percentiles

INDEX = "benchmark-cascade"
REPEAT = 12
RR: dict[str, Any] = {"window_size": 20, "ttc": {"method": "rr", "params": {"reranker": "maxsim", "budget": 20}}}
MMR: dict[str, Any] = {"window_size": 10, "ttc": {"method": "mmr"}}
LISTS: dict[str, list[dict[str, Any]]] = {
    "blend": [],
    "blend>maxsim": [{"window_size": 20, "ttc": {"method": "maxsim"}}],
    "blend>mmr": [MMR],
    "blend>rr": [RR],
    "blend>rr>mmr": [RR, MMR],
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    product = asyncio.run(_fill(url))
    try:
        with gateway(url) as served:
            data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, on {product}, loopback"
            print(heading("Several items", data=data, packages=("aiohttp", "uvicorn", "numpy")))
            print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
            print(_measured(served.url))
    finally:
        asyncio.run(_clear(url))


def _measured(url: str) -> str:
    """Return the table; the first two turns fill memories and are not counted."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    times: dict[str, list[float]] = defaultdict(list)
    for turn in range(REPEAT):
        for group in range(GROUPS):
            for name, later in LISTS.items():
                body = orjson.loads(ours(group, method="blend"))
                body["rescore"] = [body["rescore"], *later]
                raw = orjson.dumps(body)
                began = time.perf_counter()
                connection.request("POST", f"/{INDEX}/_search", raw, {"content-type": "application/json"})
                answer = orjson.loads(connection.getresponse().read())
                ms = (time.perf_counter() - began) * 1000
                assert answer["ttc"]["applied"], answer["ttc"]
                assert answer["ttc"]["method"] == name
                if turn > 1:
                    times[name].append(ms)
    alone = percentiles(times["blend"])[0]
    rows = []
    for name in LISTS:
        p50, p95 = percentiles(times[name])
        rows.append([name, f"{p50:.1f}", f"{p95:.1f}", f"{p50 - alone:.1f}", f"{p50 / alone:.2f}"])
    return table(("items", "p50 ms", "p95 ms", "more than blend, ms", "to blend alone"), rows)


async def _fill(url: str) -> str:
    async with opened(url) as engine:
        await fill(engine, INDEX)
        return (await engine.capabilities()).product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()

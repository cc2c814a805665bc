"""What ``"detail": "map"`` costs: time and bytes of a page of ten hits with it and without. Needs a running engine.

    python -m benchmarks.detail_map --engine http://127.0.0.1:9200

The same searches in turns, warm: windows of 100 documents of 256 tokens, eight scales, with and without maps.
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

INDEX = "benchmark-map"
PAGE = 10
REPEAT = 12
DETAILS: tuple[Any, ...] = (False, True, "map")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    product = asyncio.run(_fill(url))
    try:
        with gateway(url) as served:
            data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, on {product}, loopback"
            print(heading("Maps", data=data, packages=("aiohttp", "uvicorn", "numpy")))
            print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
            print(_measured(served.url))
    finally:
        asyncio.run(_clear(url))


def _measured(url: str) -> str:
    """Return the table; the first two turns fill memories and are not counted."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    asked = [(method, detail) for method in ("blend", "spectral") for detail in DETAILS]
    times: dict[tuple[str, Any], list[float]] = defaultdict(list)
    maps: dict[tuple[str, Any], list[float]] = defaultdict(list)
    sizes: dict[tuple[str, Any], int] = {}
    for turn in range(REPEAT):
        for group in range(GROUPS):
            for one in asked:
                body = ours(group, method=one[0], detail=one[1])
                began = time.perf_counter()
                connection.request("POST", f"/{INDEX}/_search", body, {"content-type": "application/json"})
                raw = connection.getresponse().read()
                ms = (time.perf_counter() - began) * 1000
                answer = orjson.loads(raw)
                assert answer["ttc"]["applied"], answer["ttc"]
                hits = answer["hits"]["hits"]
                assert len(hits) == PAGE
                assert sum("map" in hit.get("_ttc", {}) for hit in hits) == PAGE * (one[1] == "map")
                if turn > 1:
                    times[one].append(ms)
                    maps[one].append(answer["ttc"]["took"].get("map", 0.0))
                    sizes[one] = len(raw)
    rows = []
    for one in asked:
        p50, p95 = percentiles(times[one])
        plain = percentiles(times[one[0], False])[0]
        per_hit = (sizes[one] - sizes[one[0], True]) / PAGE if one[1] == "map" else 0
        rows.append(
            [
                f"{one[0]}, detail {orjson.dumps(one[1]).decode()}",
                f"{p50:.1f}",
                f"{p95:.1f}",
                f"{p50 / plain:.2f}",
                f"{percentiles(maps[one])[0]:.1f}",
                f"{sizes[one] / 1000:.1f}",
                f"{per_hit / 1000:.1f}",
            ]
        )
    names = ("search", "p50 ms", "p95 ms", "p50 to that without detail", "of which maps, ms", "page kB", "map kB a hit")
    return table(names, rows)


async def _fill(url: str) -> str:
    async with opened(url) as engine:
        await fill(engine, INDEX)
        return (await engine.capabilities()).product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()

"""Many cold searches of the greatest window at once, on a node with a small heap. Starts a node of its own.

    python -m benchmarks.cold_load [--heap 1g] [--documents 3000] [--tokens 512] [--at-once 16 64 256]

Every search asks for 1,000 documents out of all, so no two windows are alike, and the gateway remembers no features.
Each search must be answered: rescored, or with the engine's own ranking and a mark. The run fails where one is answered
by an error, or where the node does not answer afterwards.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

import aiohttp
import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.served import DIMS, ENCODER, QUERY, bulk, features, gateway, make_index, opened
from es_ttc.encoders import load_encoder
from es_ttc.engine.node import process
from es_ttc.engine.node.spec import NodeSpec
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.settings import Settings

INDEX = "benchmark-cold-load"
WINDOW = 1000
_MATRICES = 16
_TOGETHER = 100


def main() -> None:
    """Fill the index, send the searches, print how they were answered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--timeout", default="10s", help="budget of each search")
    parser.add_argument("--cache-mb", type=int, default=0, help="the gateway's memory for features")
    parser.add_argument("--at-once", type=int, nargs="+", default=[16, 64, 256])
    arguments = parser.parse_args()
    spec = NodeSpec(Settings().cache_dir, "cold-load", 0, heap=arguments.heap, owned=True, keep_data=False)
    rows: list[tuple[str, ...]] = []
    alive = True
    with process.start(spec) as node:
        asyncio.run(_fill(node.url, arguments.documents, arguments.tokens))
        for at_once in arguments.at_once:
            with gateway(node.url, feature_cache_mb=arguments.cache_mb, max_concurrent_requests=256) as running:
                row, alive = asyncio.run(_measured(node.url, running.url, at_once, arguments))
            rows.append(row)
            if not alive:
                break
    data = f"{arguments.documents:,} documents of {arguments.tokens} tokens, heap {arguments.heap}, window {WINDOW:,}"
    print(heading("Cold load", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    print(table(("at once", "rescored", "first pass, marked", "errors", "p50 s", "longest s", "node"), rows))
    if not alive or any(row[3] != "0" for row in rows):
        sys.exit(1)


async def _fill(url: str, documents: int, tokens: int) -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.standard_normal((tokens, DIMS), dtype=np.float32) for _ in range(_MATRICES)]
    matrices = [matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in matrices]
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",))
    async with opened(url) as engine:
        await make_index(engine, INDEX, spec)
        for start in range(0, documents, _TOGETHER):
            lines: list[bytes] = []
            for number in range(start, min(start + _TOGETHER, documents)):
                matrix = matrices[number % _MATRICES]
                lines += _lines(number, matrix, spec)
            await bulk(engine, INDEX, lines)
        await engine.refresh(INDEX)


def _lines(number: int, matrix: np.ndarray, spec: IndexSpec) -> Sequence[bytes]:
    from es_ttc.index.ingest.encode import action_lines

    text = f"document {number}"
    return action_lines(str(number), orjson.dumps({"text": text, "n": number}), "", features(matrix, spec, text), spec)


async def _measured(
    engine: str, gateway_url: str, at_once: int, arguments: argparse.Namespace
) -> tuple[tuple[str, ...], bool]:
    outcomes: Counter[str] = Counter()
    times: list[float] = []
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(120)
    ) as session:

        async def one(number: int) -> None:
            began = time.perf_counter()
            try:
                async with session.post(
                    f"{gateway_url}/{INDEX}/_search",
                    data=_search(number, arguments),
                    headers={"content-type": "application/json"},
                ) as response:
                    answer = orjson.loads(await response.read())
                    if response.status == 200:
                        outcomes["rescored" if answer["ttc"]["applied"] else "marked"] += 1
                        if not answer["ttc"]["applied"]:
                            outcomes[answer["ttc"]["reason"][:80]] += 1
                    else:
                        outcomes["error"] += 1
                        outcomes[str(answer)[:200]] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                outcomes["error"] += 1
                outcomes[f"{type(error).__name__} {error}"[:200]] += 1
            times.append(time.perf_counter() - began)

        await asyncio.gather(*(one(number) for number in range(at_once)))
        try:
            async with session.get(f"{engine}/_cluster/health", timeout=aiohttp.ClientTimeout(20)) as response:
                alive = response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            alive = False
    for reason, count in outcomes.items():
        print(f"{at_once} at once: {count} {reason}", file=sys.stderr)
    figures = (outcomes["rescored"], outcomes["marked"], outcomes["error"])
    seconds = (f"{statistics.median(times):.2f}", f"{max(times):.2f}")
    return (str(at_once), *map(str, figures), *seconds, "alive" if alive else "dead"), alive


def _search(number: int, arguments: argparse.Namespace) -> bytes:
    wanted = sorted(Random(number).sample(range(arguments.documents), min(WINDOW, arguments.documents)))
    section = {"method": "spectral", "query_text": QUERY, "timeout": arguments.timeout}
    body = {
        "query": {"ids": {"values": [str(one) for one in wanted]}},
        "size": 10,
        "_source": False,
        "rescore": {"window_size": WINDOW, "ttc": section},
    }
    return orjson.dumps(body)


if __name__ == "__main__":
    main()

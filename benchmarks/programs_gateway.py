"""What programs add to a search through the gateway, window 100: warm and cold, and feedback through the engine's kNN.

    python -m benchmarks.programs_gateway --engine http://127.0.0.1:9200

Documents carry random chunk vectors, so nothing has to be encoded but the query, and that once: its vector is in the
gateway's memory from the second search on. What a program encodes for every query (2 to 13 texts) is part of `score`.
"""

import argparse
import asyncio
import statistics
import time
from typing import Any

import numpy as np
import orjson
import psutil

from benchmarks.common import heading, table
from benchmarks.programs_window import COUNTS, chunks_of, unit
from benchmarks.served import DIMS, ENCODER, Client, Gateway, bulk, delete, gateway, make_index, opened
from es_ttc.encoders import load_encoder
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import DocumentFeatures, action_lines
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.rescorers.programs.catalogue import CATALOGUE

INDEX = "benchmark-programs"
WINDOW = 100
GROUPS = 6
QUERY = "one query for all"
FEEDBACK = ("softcentroid", "rocchio", "consensusrocchio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--index", default=INDEX)
    parser.add_argument("--repeat", type=int, default=8)
    arguments = parser.parse_args()
    url, index = arguments.engine, arguments.index
    product = asyncio.run(_fill(url, index))
    try:
        with gateway(url, max_window=1000) as warm, gateway(url, feature_cache_mb=0, max_window=1000) as forgetful:
            data = f"{GROUPS} x {WINDOW} documents, {COUNTS} chunks each x {DIMS}, int8, on {product}, loopback"
            print(heading("Programs through the gateway", data=data, packages=("aiohttp", "uvicorn", "numpy")))
            columns: tuple[str, ...] = (
                "program",
                "encodings a query",
                "warm: added p50 ms",
                "score p50",
                "p95",
                "cold: added p50 ms",
                "warm: the gateway's processor time, ms",
            )
            print(table(columns, _rescored(url, warm, forgetful.url, index, arguments.repeat)))
            columns = ("knn clause", "p50 ms", "p95 ms", "searches of the engine for it")
            print(table(columns, _retrieved(forgetful.url, index, arguments.repeat * GROUPS)))
    finally:
        asyncio.run(_clear(url, index))


async def _fill(url: str, index: str) -> str:
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",), tokens="none", chunks=True)
    random = np.random.default_rng(1)
    async with opened(url) as engine:
        await make_index(engine, index, spec)
        for group in range(GROUPS):
            lines: list[bytes] = []
            for number in range(WINDOW):
                text = f"group{group} " + " ".join(f"word{word}." for word in random.integers(0, 500, 100))
                content = content_hash(*compose({"text": text}, spec.text_fields), spec)
                features = DocumentFeatures(
                    content, unit(random, 1)[0], None, truncated=False, chunks=chunks_of(text, random)
                )
                lines += action_lines(f"{group}-{number}", orjson.dumps({"text": text}), "", features, spec)
            await bulk(engine, index, lines)
        await engine.refresh(index)
        return (await engine.capabilities()).product


async def _clear(url: str, index: str) -> None:
    async with opened(url) as engine:
        await delete(engine, index)


def _rescored(url: str, warm: Gateway, cold: str, index: str, repeat: int) -> list[tuple[str, ...]]:
    """Measure every program in turns with the search that it reorders, asked of the engine itself.

    The processor time is that of the whole search in the gateway: other work on the machine changes it little.
    """
    process = psutil.Process(warm.pid)
    rows: list[tuple[str, ...]] = []
    with Client(url) as direct, Client(warm.url) as remembering, Client(cold) as forgetful:
        for name, entry in CATALOGUE.items():
            times: dict[str, list[float]] = {"direct": [], "warm": [], "cold": []}
            scoring: list[float] = []
            turns = repeat if entry.passes == 0 else max(3, repeat // 2)
            busy = 0.0
            for turn in range(turns + 2):  # the first turns encode the query, fill the memory, let the engine compile
                if turn == 2:
                    busy = _processor_seconds(process)
                for group in range(GROUPS):
                    plain, ours = _search(group), _search(group, name)
                    asked = {"direct": (direct, plain), "warm": (remembering, ours), "cold": (forgetful, ours)}
                    for kind, (client, body) in asked.items():
                        started = time.perf_counter()
                        answer = client.search(body, index)
                        if turn > 1:
                            times[kind].append((time.perf_counter() - started) * 1000)
                        if kind == "direct":
                            continue
                        assert answer["ttc"]["applied"], answer["ttc"]
                        assert answer["ttc"]["scored"] == WINDOW, answer["ttc"]
                        if kind == "warm" and turn > 1:
                            scoring.append(answer["ttc"]["took"]["score"])
            busy = (_processor_seconds(process) - busy) / (turns * GROUPS) * 1000
            base = statistics.median(times["direct"])
            added = {kind: statistics.median(times[kind]) - base for kind in ("warm", "cold")}
            late = float(np.percentile(times["warm"], 95)) - base
            shown = (added["warm"], statistics.median(scoring), late, added["cold"], busy)
            rows.append((name, str(entry.passes), *(f"{value:.1f}" for value in shown)))
    return rows


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _retrieved(url: str, index: str, repeat: int) -> list[tuple[str, ...]]:
    """Measure feedback as a kNN clause; the gateway keeps no vectors, so the searches must bring them."""
    rows: list[tuple[str, ...]] = []
    with Client(url) as client:
        for name in ("dense", *FEEDBACK):
            body = orjson.dumps({"knn": _clause(name), "size": 10, "_source": False})
            for _ in range(5):
                answer = client.search(body, index)
            assert answer["ttc"]["applied"], answer["ttc"]
            before = _searches(client, index)
            times = []
            for _ in range(repeat):
                started = time.perf_counter()
                client.search(body, index)
                times.append((time.perf_counter() - started) * 1000)
            requests = (_searches(client, index) - before) / repeat
            rows.append((name, f"{statistics.median(times):.1f}", f"{np.percentile(times, 95):.1f}", f"{requests:g}"))
    return rows


def _search(group: int, program: str | None = None) -> bytes:
    body: dict[str, Any] = {"query": {"match": {"text": f"group{group}"}}, "size": 10, "_source": False}
    if program is not None:
        section = {"method": program, "query_text": QUERY, "timeout": "20s"}
        body["rescore"] = {"window_size": WINDOW, "ttc": section}
    return orjson.dumps(body)


def _clause(method: str) -> dict[str, Any]:
    return {"field": "ttc.vector", "query_text": QUERY, "k": 10, "ttc": {"method": method, "timeout": "20s"}}


def _searches(client: Client, index: str) -> int:
    """Return how many searches the index has answered; it has one shard, and each of ours is a request of its own."""
    found: int = client.get(f"/{index}/_stats/search")["_all"]["primaries"]["search"]["query_total"]
    return found


if __name__ == "__main__":
    main()

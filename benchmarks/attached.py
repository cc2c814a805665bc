"""What it costs to keep features beside an index instead of in it: rescoring and kNN through the gateway.

    python -m benchmarks.attached --engine http://127.0.0.1:9200

The same documents twice, by the commands that users have: ingested with their features, and written as they are and
then attached. Each kind of search goes to both in turns, with features in the gateway's memory and with a gateway that
keeps none. The encoder's time for the query is in all of them alike, once: the query is the same.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.common import heading, table
from benchmarks.served import ENCODER, QUERY, WINDOW, Client, bulk, delete, gateway, opened, percentiles

INSIDE = "benchmark-attached-inside"
BESIDE = "benchmark-attached-beside"
DOCUMENTS = 300
GROUPS = 2
WORDS = 150


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    product = asyncio.run(_write_plain(url))
    try:
        _give_features(url)
        with gateway(url) as warm, gateway(url, feature_cache_mb=0) as forgetful:
            rows = [*_compared("warm", product, warm.url), *_compared("cold", product, forgetful.url)]
    finally:
        asyncio.run(_clear(url))
    data = f"{DOCUMENTS} documents of {WORDS} words on {product}, window {WINDOW}, loopback"
    print(heading("Features beside an index", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    columns = ("search, features", "in the index, p50 ms", "p95", "beside it, p50 ms", "p95", "added ms")
    print(table(columns, rows))


def documents() -> list[dict[str, Any]]:
    """Return documents that a word finds by the hundred."""
    rng = np.random.default_rng(0)
    return [
        {"_id": str(number), "text": f"group{number % GROUPS} " + " ".join(f"word{word}" for word in words)}
        for number, words in enumerate(rng.integers(0, 400, (DOCUMENTS, WORDS)))
    ]


async def _write_plain(url: str) -> str:
    await _clear(url)
    async with opened(url) as engine:
        await engine.create_index(BESIDE, {"mappings": {"properties": {"text": {"type": "text"}}}})
        lines: list[bytes] = []
        for document in documents():
            lines += [orjson.dumps({"index": {"_id": document["_id"]}}), orjson.dumps({"text": document["text"]})]
        await bulk(engine, BESIDE, lines)
        await engine.refresh(BESIDE)
        return (await engine.capabilities()).product


def _give_features(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.jsonl"
        file.write_bytes(b"\n".join(map(orjson.dumps, documents())))
        _command("ingest", INSIDE, str(file), "--text-fields", "text", "--encoder", ENCODER, "--engine", url)
    _command("attach", BESIDE, "--text-fields", "text", "--encoder", ENCODER, "--engine", url)


def _command(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "es_ttc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _searches(product: str) -> Mapping[str, dict[str, Any]]:
    found = {"match": {"text": "group1"}}
    ours = {"method": "spectral", "query_text": QUERY}
    return {
        "rescore spectral": {"query": found, "rescore": {"window_size": WINDOW, "ttc": ours}},
        "kNN, dense": _knn(product, {}),
        "kNN, nnn": _knn(product, {"ttc": {"method": "nnn"}}),
    }


def _knn(product: str, more: Mapping[str, Any]) -> dict[str, Any]:
    clause = {"query_text": QUERY, "k": 10, **more}
    if product == "opensearch":
        return {"query": {"knn": {"ttc.vector": clause}}}
    return {"knn": {"field": "ttc.vector", "num_candidates": WINDOW, **clause}}


def _compared(memory: str, product: str, url: str, repeat: int = 40) -> list[tuple[str, ...]]:
    rows = []
    with Client(url) as client:
        for name, body in _searches(product).items():
            asked = orjson.dumps({**body, "size": 10, "_source": False})
            times: dict[str, list[float]] = {INSIDE: [], BESIDE: []}
            for turn in range(repeat + 5):
                for index, measured in times.items():
                    started = time.perf_counter()
                    answer = client.search(asked, index)
                    if turn >= 5:  # the first ones fill the memory, and the engine compiles what it runs
                        measured.append((time.perf_counter() - started) * 1000)
                    assert len(answer.get("hits", {}).get("hits", ())) == 10, answer
            (inside, late), (beside, later) = percentiles(times[INSIDE]), percentiles(times[BESIDE])
            added = statistics.median(b - a for a, b in zip(times[INSIDE], times[BESIDE], strict=True))
            rows.append((f"{name}, {memory}", *(f"{value:.1f}" for value in (inside, late, beside, later, added))))
    return rows


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        if await engine.exists(BESIDE):
            await asyncio.to_thread(_command, "detach", BESIDE, "--yes", "--engine", url)
        await delete(engine, INSIDE, BESIDE)


if __name__ == "__main__":
    main()

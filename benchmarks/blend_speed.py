"""What blend adds to a BM25 search, warm and cold, beside hybrid search done in a client. Needs a running engine.

    python -m benchmarks.blend_speed --engine http://127.0.0.1:9200

Windows of 100 documents and 100 candidates, of 256 tokens each. The client's hybrid search asks the engine twice (BM25
and kNN, 100 ids each) and fuses by reciprocal rank. The cross-encoder (msmarco-minilm) reads BM25's first 20 documents.
All pages are ten ids without `_source`.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import orjson

from benchmarks.common import heading, table
from benchmarks.served import (
    ENCODER,
    GROUPS,
    QUERY,
    TOKENS,
    WINDOW,
    Client,
    answered,
    delete,
    fill,
    gateway,
    opened,
    percentiles,
    query,
)
from es_ttc.encoders import load_encoder
from es_ttc.engine.versions import Product
from es_ttc.index.mappings.queries import nearest
from es_ttc.lab.evaluation.rankings import reciprocal_rank_fusion
from es_ttc.vectors.codecs import DEFAULT_CODEC

INDEX = "benchmark-blend"
CONNECTIONS = 16
SECONDS = 5.0
WARM_UP_SECONDS = 6.0
PAGE = 10

Search = Callable[[Client, int], Mapping[str, Any]]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    product = asyncio.run(_fill(url))
    try:
        with gateway(url) as warm, gateway(url, feature_cache_mb=0) as cold:
            for address, body in ((url, query(0, rescore=False)), (warm.url, ours(0)), (cold.url, ours(0))):
                asyncio.run(answered(address, INDEX, body, connections=4, seconds=WARM_UP_SECONDS))
            _report(url, {"warm": warm.url, "cold": cold.url}, product)
    finally:
        asyncio.run(_clear(url))


def ours(group: int, **section: object) -> bytes:
    """Return the search of a group's documents, ranked by blend unless the section says otherwise."""
    body = orjson.loads(query(group, rescore=False))
    return orjson.dumps(body | {"rescore": {"window_size": WINDOW, "ttc": {"query_text": QUERY} | section}})


def in_client(product: Product) -> Search:
    """Return hybrid search as a client does it."""
    vector = load_encoder(ENCODER).encode([QUERY], role="query", tokens=False).pooled[0]
    by_vector = orjson.dumps(nearest(vector, WINDOW, product) | {"size": WINDOW, "_source": False})

    def search(engine: Client, group: int) -> Mapping[str, Any]:
        by_words = orjson.loads(query(group, rescore=False)) | {"size": WINDOW, "_source": False}
        found = [engine.search(orjson.dumps(by_words), INDEX), engine.search(by_vector, INDEX)]
        fused = reciprocal_rank_fusion([[hit["_id"] for hit in one["hits"]["hits"]] for one in found])
        return {"hits": {"hits": [{"_id": identifier} for identifier, _ in fused[:PAGE]]}}

    return search


def by_cross_encoder() -> Search:
    """Return the search whose first documents a cross-encoder reads, each time for another query: scores are kept."""
    numbers = count()
    method = {"method": "rr", "params": {"budget": 20}, "timeout": "60s"}
    return lambda through, group: through.search(ours(group, **method, query_text=f"query {next(numbers)}"), INDEX)


def _report(url: str, gateways: Mapping[str, str], product: Product) -> None:
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, {DEFAULT_CODEC}, on {product}, loopback"
    print(heading("Blend's time", data=data, packages=("aiohttp", "uvicorn", "numpy")))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    client = in_client(product)
    rows = []
    for name, address in gateways.items():
        requests: dict[str, tuple[str, Search]] = {
            "blend": (address, lambda through, group: through.search(ours(group), INDEX)),
            "blend, window alone": (
                address,
                lambda through, group: through.search(ours(group, candidates={"knn": 0}), INDEX),
            ),
            "hybrid": (address, lambda through, group: through.search(ours(group, method="hybrid"), INDEX)),
            "spectral": (address, lambda through, group: through.search(ours(group, method="spectral"), INDEX)),
        }
        if name == "warm":
            requests["hybrid in a client"] = (url, client)
        rows += [[f"{name}: {what}", *_added(url, *asked)] for what, asked in requests.items()]
        if name == "warm":
            rows.append(["warm: cross-encoder, on both cores", *_added(url, address, by_cross_encoder(), 2)])
    print(table(("added to the BM25 search", "p50 ms", "p95 ms", "of which scoring"), rows))
    rows = []
    for what, address, body in (
        ("BM25, engine alone", url, query(0, rescore=False)),
        ("blend", gateways["warm"], ours(0)),
        ("spectral", gateways["warm"], ours(0, method="spectral")),
    ):
        times = asyncio.run(answered(address, INDEX, body, connections=CONNECTIONS, seconds=SECONDS))
        rows.append([what, f"{len(times) / SECONDS:.0f}"])
    print(table((f"{CONNECTIONS} connections", "requests/s"), rows))


def _added(engine: str, address: str, search: Search, repeat: int = 8) -> list[str]:
    """Measure in turns with the engine alone; the first turn fills memories and is not counted."""
    direct: list[float] = []
    totals: list[float] = []
    scoring: list[float] = []
    with Client(engine) as plain, Client(address) as through:
        for turn in range(repeat):
            for group in range(GROUPS):
                started = time.perf_counter()
                plain.search(query(group, rescore=False), INDEX)
                before = time.perf_counter()
                answer = search(through, group)
                total = time.perf_counter() - before
                assert len(answer["hits"]["hits"]) == PAGE, answer
                assert answer.get("ttc", {"applied": True})["applied"], answer["ttc"]
                if turn:
                    direct.append((before - started) * 1000)
                    totals.append(total * 1000)
                    scoring.append(answer["ttc"]["took"]["score"] if "ttc" in answer else 0.0)
    base = statistics.median(direct)
    p50, p95 = percentiles([total - base for total in totals])
    return [f"{p50:.1f}", f"{p95:.1f}", f"{statistics.median(scoring):.1f}"]


async def _fill(url: str) -> Product:
    async with opened(url) as engine:
        await fill(engine, INDEX)
        return (await engine.capabilities()).product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX)


if __name__ == "__main__":
    main()

"""What blend adds to a BM25 search, warm and cold, beside hybrid search done in a client. Needs a running engine.

    python -m benchmarks.blend_speed --engine http://127.0.0.1:9200

Windows of 100 documents and 100 candidates, of 256 tokens each. The client's hybrid search asks the engine twice (BM25
and kNN, 100 ids each) and fuses by reciprocal rank. The cross-encoder (msmarco-minilm) reads BM25's first 20 documents.
All pages are ten ids without `_source`. An attached index has the same texts, and its features in a side index.
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
    bulk,
    delete,
    documents,
    fill,
    gateway,
    opened,
    percentiles,
    query,
)
from es_ttc.encoders import load_encoder
from es_ttc.engine.versions import Product
from es_ttc.index.attach import attach_beside, detach, traces_of
from es_ttc.index.mappings.indices import Index
from es_ttc.index.mappings.queries import nearest_body
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.rankings import fuse_rankings
from es_ttc.vectors.codecs import DEFAULT_CODEC

INDEX = "benchmark-blend"
ATTACHED = f"{INDEX}-attached"
CONNECTIONS = 16
SECONDS = 5.0
WARM_UP_SECONDS = 6.0
PAGE = 10
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "blend": {},
    "blend, window alone": {"candidates": {"knn": 0}},
    "hybrid": {"method": "hybrid"},
    "spectral": {"method": "spectral"},
}

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
            asyncio.run(answered(warm.url, ATTACHED, ours(0), connections=4, seconds=WARM_UP_SECONDS))
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
    by_vector = orjson.dumps(nearest_body(vector, WINDOW, product) | {"size": WINDOW, "_source": False})

    def search(engine: Client, group: int) -> Mapping[str, Any]:
        by_words = orjson.loads(query(group, rescore=False)) | {"size": WINDOW, "_source": False}
        found = [engine.search(body, INDEX) for body in (orjson.dumps(by_words), by_vector)]
        fused = fuse_rankings([[hit["_id"] for hit in one["hits"]["hits"]] for one in found])
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
        for what, section in SECTIONS.items():
            rows.append([f"{name}: {what}", *_added(url, address, _searching(INDEX, section))])
        if name == "warm":
            for what in ("blend", "spectral"):
                added = _added(url, address, _searching(ATTACHED, SECTIONS[what]), beside=ATTACHED)
                rows.append([f"warm, side index: {what}", *added])
            rows.append(["hybrid in a client", *_added(url, url, client)])
            rows.append(["cross-encoder, on both cores", *_added(url, address, by_cross_encoder(), 2)])
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


def _searching(index: str, section: Mapping[str, Any]) -> Search:
    return lambda through, group: through.search(ours(group, **section), index)


def _added(engine: str, address: str, search: Search, repeat: int = 8, beside: str = INDEX) -> list[str]:
    """Measure in turns with the engine alone; the first turn fills memories and is not counted."""
    direct: list[float] = []
    totals: list[float] = []
    scoring: list[float] = []
    with Client(engine) as plain, Client(address) as through:
        for turn in range(repeat):
            for group in range(GROUPS):
                started = time.perf_counter()
                plain.search(query(group, rescore=False), beside)
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
        await delete(engine, ATTACHED)
        await engine.create_index(ATTACHED, {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        for group in range(GROUPS):
            lines = [
                line
                for name, text, _ in documents(group)
                for line in (orjson.dumps({"index": {"_id": name}}), orjson.dumps({"text": text}))
            ]
            await bulk(engine, ATTACHED, lines)
        await engine.refresh(ATTACHED)
        encoder = load_encoder(ENCODER)
        [source] = await Index.behind(engine, ATTACHED)
        await attach_beside(engine, source, IndexSpec(encoder.identity, text_fields=("text",)), encoder)
        return (await engine.capabilities()).product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        for traces in await traces_of(engine, ATTACHED):
            await detach(engine, traces)
        await delete(engine, INDEX, ATTACHED)


if __name__ == "__main__":
    main()

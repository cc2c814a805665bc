"""What blend adds to a BM25 search, warm and cold, beside hybrid search done in a client. Needs a running engine.

    python -m benchmarks.blend_speed --engine http://127.0.0.1:9200

Windows of 100 documents and 100 candidates, of 256 tokens each. The client's hybrid search asks the engine twice (BM25
and kNN, 100 ids each) and fuses by reciprocal rank. The cross-encoder (msmarco-minilm) reads BM25's first 20 documents.
All pages are ten ids without `_source`.

An attached index has the same documents, and their features in a side index. Its searches take turns with those of the
index that contains them: with windows whose documents were written together, with windows whose documents are all over
the index, and with another query at each search.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
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
    gateway,
    make_index,
    opened,
    percentiles,
    query,
)
from es_ttc.encoders import CachedEncoder, load_encoder
from es_ttc.engine.versions import Product
from es_ttc.index.attach import attach_beside, detach, traces_of
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
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
            rows.append(["hybrid in a client", *_added(url, url, client)])
            rows.append(["cross-encoder, on both cores", *_added(url, address, by_cross_encoder(), 2)])
    print(table(("added to the BM25 search", "p50 ms", "p95 ms", "of which scoring"), rows))
    columns = (
        "added to the BM25 search, warm",
        "attached, p50 / p95 ms",
        "own features, p50 / p95 ms",
        "attached / own",
    )
    print(table(columns, _attached_and_own(url, gateways["warm"])))
    print(
        table((f"engine alone, {WINDOW} documents all over the index", "p50 ms", "p95 ms"), _with_and_without_ids(url))
    )
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


def _attached_and_own(engine: str, through: str, repeat: int = 12) -> list[list[str]]:
    """Measure searches of both indices in turns, each beside the engine alone."""
    numbers = count()
    spectral, another = {"method": "spectral"}, lambda: {"query_text": f"{QUERY} {next(numbers)}"}
    kinds: Mapping[str, tuple[Callable[[int], str], Callable[[], Mapping[str, Any]]]] = {
        "spectral": ("group{}".format, lambda: spectral),
        "spectral, documents all over the index": (_word, lambda: spectral),
        "blend": ("group{}".format, dict),
        "blend, documents all over the index": (_word, dict),
        "blend, another query each time": ("group{}".format, another),
    }
    rows = []
    with Client(engine) as plain, Client(through) as gateway:
        for what, (words, section) in kinds.items():
            direct: dict[str, list[float]] = {ATTACHED: [], INDEX: []}
            totals: dict[str, list[float]] = {ATTACHED: [], INDEX: []}
            for turn in range(repeat + 2):
                for group in range(GROUPS):
                    body = {"query": {"match": {"text": words(group)}}, "size": PAGE, "_source": False}
                    for index in (ATTACHED, INDEX):
                        ttc = {"query_text": QUERY, **section()}
                        rescored = orjson.dumps(body | {"rescore": {"window_size": WINDOW, "ttc": ttc}})
                        started = time.perf_counter()
                        plain.search(orjson.dumps(body), index)
                        before = time.perf_counter()
                        answer = gateway.search(rescored, index)
                        ended = time.perf_counter()
                        assert answer["ttc"]["applied"], answer["ttc"]
                        if turn > 1:  # the first two turns fill memories
                            direct[index].append((before - started) * 1000)
                            totals[index].append((ended - before) * 1000)
            added = {
                index: percentiles([total - statistics.median(direct[index]) for total in totals[index]])
                for index in (ATTACHED, INDEX)
            }
            shown = [f"{p50:.1f} / {p95:.1f}" for p50, p95 in added.values()]
            rows.append([what, *shown, f"{added[ATTACHED][0] / added[INDEX][0]:.2f}"])
    return rows


def _with_and_without_ids(engine: str, repeat: int = 12) -> list[list[str]]:
    """Measure searches whose hits have ids, which are stored with the documents, and searches of doc values alone."""
    parts: dict[str, dict[str, Any]] = {
        "with ids": {"_source": False},
        "without": {"stored_fields": "_none_", "docvalue_fields": ["_seq_no"]},
    }
    times: dict[str, list[float]] = {what: [] for what in parts}
    with Client(engine) as plain:
        for turn in range(repeat + 2):
            for group in range(GROUPS):
                for what, part in parts.items():
                    body = orjson.dumps({"query": {"match": {"text": _word(group)}}, "size": WINDOW, **part})
                    started = time.perf_counter()
                    plain.search(body, ATTACHED)
                    if turn > 1:
                        times[what].append((time.perf_counter() - started) * 1000)
    return [[what, *(f"{ms:.1f}" for ms in percentiles(values))] for what, values in times.items()]


def _word(group: int) -> str:
    """Return a word of documents of all groups."""
    return f"{100 + group}"


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
    texts = {name: text for group in range(GROUPS) for name, text, _ in documents(group)}
    with tempfile.TemporaryDirectory() as folder:  # each text is encoded once
        encoder = CachedEncoder(load_encoder(ENCODER), Path(folder))
        spec = IndexSpec(encoder.identity, text_fields=("text",))
        async with opened(url) as engine:
            await delete(engine, ATTACHED)
            await engine.create_index(ATTACHED, {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
            lines = [
                line
                for name, text in texts.items()
                for line in (orjson.dumps({"index": {"_id": name}}), orjson.dumps({"text": text}))
            ]
            await bulk(engine, ATTACHED, lines)
            await engine.refresh(ATTACHED)
            [source] = await Index.behind(engine, ATTACHED)
            await attach_beside(engine, source, spec, encoder)
            await make_index(engine, INDEX, spec)
            inputs = Inputs([Documents([{"_id": name, "text": text} for name, text in texts.items()])])
            await ingest(engine, INDEX, inputs, encoder, dead_letters=DeadLetterList())
            await engine.refresh(INDEX)
            return (await engine.capabilities()).product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        for traces in await traces_of(engine, ATTACHED):
            await detach(engine, traces)
        await delete(engine, INDEX, ATTACHED)


if __name__ == "__main__":
    main()

"""What the gateway costs: pass-through, spectral rescoring warm and cold, throughput, memory. Needs a running engine.

On OpenSearch spectral is set against the engine's own way to score a window by token vectors, a rescore by the script
function `lateInteractionScore`, which reads them as JSON arrays from `_source`. Elasticsearch has no such function.

    python -m benchmarks.gateway --engine http://127.0.0.1:9200

The gateway runs as a process of its own, as it does in use. Documents carry random token vectors, so nothing has to be
encoded but the query, whose time is shown apart.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import psutil

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
from es_ttc.engine.protocol import Engine
from es_ttc.vectors.codecs import DEFAULT_CODEC

INDEX = "benchmark-gateway"
SCRIPTED = "benchmark-gateway-scripted"
CONNECTIONS = 16
SECONDS = 5.0
WARM_UP_SECONDS = 6.0
_OFTEN = 11


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--memory", action="store_true", help="measure memory alone")
    arguments = parser.parse_args()
    url = arguments.engine
    product = asyncio.run(_fill(url, scripted=not arguments.memory))
    try:
        columns = ("workers", "first process, MB", "a worker, MB", "all, MB", "all after searches, MB")
        print(table(columns, _memory(url)))
        if arguments.memory:
            return
        with gateway(url) as warm, gateway(url, feature_cache_mb=0) as forgetful, gateway(url, compiled=False) as plain:
            _warm_up(url, warm.url, forgetful.url, plain.url)
            _report(url, warm.url, forgetful.url, plain.url, product)
    finally:
        asyncio.run(_clear(url))


def _memory(url: str) -> list[tuple[str, ...]]:
    """Return the memory of gateways that are ready, and after searches: what is shared counts in parts (PSS)."""
    rows: list[tuple[str, ...]] = []
    for workers in (1, 2, 4):
        with gateway(url, workers=workers) as running:
            first = psutil.Process(running.pid).parent()
            assert first is not None
            processes = [first, *first.children()]
            own, *others = _megabytes(processes)
            for group in range(GROUPS):
                body = query(group, rescore=True)
                asyncio.run(answered(running.url, INDEX, body, connections=CONNECTIONS, seconds=1))
            after = sum(_megabytes(processes))
            each = statistics.mean(others)
            rows.append((str(workers), *(f"{size:.0f}" for size in (own, each, own + sum(others), after))))
    return rows


def _megabytes(processes: Sequence[psutil.Process]) -> list[float]:
    return [one.memory_full_info().pss / 1e6 for one in processes]


def _warm_up(engine: str, *gateways: str) -> None:
    """Search for a while: a fresh engine answers several times slower until it has compiled what it runs."""
    plain, ours = query(0, rescore=False), query(0, rescore=True)
    for url, body in ((engine, plain), *((through, ours) for through in gateways)):
        asyncio.run(answered(url, INDEX, body, connections=4, seconds=WARM_UP_SECONDS))


def _report(url: str, gateway: str, forgetful: str, by_numpy: str, product: str) -> None:
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, {DEFAULT_CODEC}, on {product}, loopback"
    print(heading("Gateway", data=data, packages=("aiohttp", "uvicorn", "starlette", "numpy")))
    print(f"Load average before: {os.getloadavg()[0]:.1f}\n")
    columns = ("pass-through", "direct p50 ms", "gateway p50 ms", "added ms", "p95 ms")
    print(table(columns, _pass_through(url, gateway)))
    gateways = {"warm": gateway, "warm, numpy": by_numpy, "cold": forgetful}
    print(table(("spectral, window 100", "p50 ms", "p95 ms"), _spectral(url, gateways)))
    if product == "opensearch":
        print(
            table(
                (f"token vectors of one window of {WINDOW}", "p50 ms", "added ms", "of spectral"),
                _scripted(url, gateway),
            )
        )
    print(table((f"{CONNECTIONS} connections", "requests/s", "of direct"), _throughput(url, gateway)))


async def _fill(url: str, *, scripted: bool) -> str:
    async with opened(url) as engine:
        product = (await engine.capabilities()).product
        await fill(engine, INDEX)
        if product == "opensearch" and scripted:
            await _index_scripted(engine)
        return product


async def _clear(url: str) -> None:
    async with opened(url) as engine:
        await delete(engine, INDEX, SCRIPTED)


async def _index_scripted(engine: Engine) -> None:
    """Write the first window once more, its token vectors rounded to five digits: the script has less to read so."""
    await delete(engine, SCRIPTED)
    body = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0},
        "mappings": {"properties": {"text": {"type": "text"}, "tokens": {"type": "object", "enabled": False}}},
    }
    await engine.create_index(SCRIPTED, body)
    for name, text, matrix in documents(0):
        source = {"text": text, "tokens": np.round(matrix.astype(np.float64), 5)}
        line = orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY)
        await bulk(engine, SCRIPTED, [orjson.dumps({"index": {"_id": name}}), line])
    await engine.refresh(SCRIPTED)


def _pass_through(engine: str, gateway: str, repeat: int = 400) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    requests: dict[str, Any] = {
        "GET /": lambda client: client.get("/"),
        "_search, 10 hits": lambda client: client.search(query(0, rescore=False), INDEX),
    }
    with Client(engine) as direct, Client(gateway) as through:
        for name, request in requests.items():
            times: dict[int, list[float]] = {0: [], 1: []}
            for turn in range(2 * repeat + 40):
                started = time.perf_counter()
                request((direct, through)[turn % 2])
                if turn >= 40:
                    times[turn % 2].append((time.perf_counter() - started) * 1000)
            (before, _), (after, late) = percentiles(times[0]), percentiles(times[1])
            rows.append((name, f"{before:.2f}", f"{after:.2f}", f"{after - before:.2f}", f"{late:.2f}"))
    return rows


def _spectral(engine: str, gateways: Mapping[str, str], repeat: int = 8) -> list[tuple[str, ...]]:
    """Measure each gateway in turns with the engine alone: what another one reads must not push its memory out."""
    rows: list[tuple[str, ...]] = []
    for name, url in gateways.items():
        direct: list[float] = []
        runs: list[dict[str, float]] = []
        with Client(engine) as plain, Client(url) as through:
            for turn in range(repeat):
                for group in range(GROUPS):
                    started = time.perf_counter()
                    plain.search(query(group, rescore=False), INDEX)
                    before = time.perf_counter()
                    ttc = through.search(query(group, rescore=True), INDEX)["ttc"]
                    total = (time.perf_counter() - before) * 1000
                    assert ttc["applied"], ttc
                    assert ttc["scored"] == WINDOW, ttc
                    if turn:  # the first turn encodes the query, fills the memory, and lets the engine compile
                        assert ttc["features_from_memory"] == (0 if name == "cold" else WINDOW), ttc
                        direct.append((before - started) * 1000)
                        runs.append({"total": total, **ttc["took"]})
        base = statistics.median(direct)
        rows.append((f"{name}: engine alone, 10 hits", *(f"{value:.1f}" for value in percentiles(direct))))
        added = [run["total"] - base for run in runs]
        rows.append((f"{name}: added to it", *(f"{value:.1f}" for value in percentiles(added))))
        rows.extend(
            (f"{name}: {stage}", *(f"{value:.1f}" for value in percentiles([run[stage] for run in runs])))
            for stage in ("first_pass", "features", "encode", "score")
        )
    encoder = load_encoder(ENCODER)
    times = []
    for number in range(20):
        started = time.perf_counter()
        encoder.encode([f"one query for all of them {number}"], role="query", tokens=False)
        times.append((time.perf_counter() - started) * 1000)
    rows.append(("encoder, one new query", *(f"{value:.1f}" for value in percentiles(times))))
    return rows


def _scripted(engine: str, gateway: str, repeat: int = 5) -> list[tuple[str, ...]]:
    """Score one window by both, some times each, in turns; each is set beside the same search without a rescore."""
    vector = load_encoder(ENCODER).encode([QUERY], role="query", tokens=False).pooled
    script = {"source": "lateInteractionScore(params.query, 'tokens', params._source)", "params": {"query": vector}}
    scored = {"script_score": {"query": {"match_all": {}}, "script": script}}
    native = orjson.loads(query(0, rescore=False))
    native["rescore"] = {"window_size": WINDOW, "query": {"rescore_query": scored, "query_weight": 0}}
    body = orjson.dumps(native, option=orjson.OPT_SERIALIZE_NUMPY)
    with Client(engine) as direct, Client(gateway) as through:
        calls: dict[str, Callable[[], Any]] = {
            "script, no rescore": lambda: direct.search(query(0, rescore=False), SCRIPTED),
            "script": lambda: direct.search(body, SCRIPTED),
            "spectral, no rescore": lambda: direct.search(query(0, rescore=False), INDEX),
            "spectral": lambda: through.search(query(0, rescore=True), INDEX),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeat):
            for name, call in calls.items():
                for number in range(2 if name == "script" else _OFTEN):
                    started = time.perf_counter()
                    answer = call()
                    if number:  # the first one after another kind finds processors that have read something else
                        times[name].append((time.perf_counter() - started) * 1000)
                    assert len(answer["hits"]["hits"]) == 10, answer
                    assert name != "spectral" or answer["ttc"]["scored"] == WINDOW, answer
    medians = {name: statistics.median(values) for name, values in times.items()}
    added = {name: medians[name] - medians[f"{name}, no rescore"] for name in ("script", "spectral")}
    named = (("script", "the engine's lateInteractionScore, 1 query vector"), ("spectral", "spectral, warm"))
    return [
        (title, f"{medians[name]:.1f}", f"{added[name]:.1f}", f"{added[name] / added['spectral']:.0f} x")
        for name, title in named
    ]


def _throughput(engine: str, gateway: str, turns: int = 3) -> list[tuple[str, ...]]:
    """Requests a second, in turns, so that a machine whose speed drifts is fair to all; medians."""
    plain, ours = query(0, rescore=False), query(0, rescore=True)
    calls = {"engine alone": (engine, plain), "pass-through": (gateway, plain), "spectral, warm": (gateway, ours)}
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, (url, body) in calls.items():
            times = asyncio.run(answered(url, INDEX, body, connections=CONNECTIONS, seconds=SECONDS))
            rates[name].append(len(times) / SECONDS)
    shares = {
        name: [rate / direct for rate, direct in zip(values, rates["engine alone"], strict=True)]
        for name, values in rates.items()
    }
    return [
        (name, f"{statistics.median(values):.0f}", f"{statistics.median(shares[name]):.2f}")
        for name, values in rates.items()
    ]


if __name__ == "__main__":
    main()

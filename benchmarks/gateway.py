"""What the gateway costs: pass-through, spectral rescoring warm and cold, throughput. Needs a running engine.

On OpenSearch spectral is set against the engine's own way to score a window by token vectors, a rescore by the script
function `lateInteractionScore`, which reads them as JSON arrays from `_source`. Elasticsearch has no such function.

    python -m benchmarks.gateway --engine http://127.0.0.1:9200

The gateway runs as a process of its own, as it does in use. Documents carry random token vectors, so nothing has to be
encoded but the query, whose time is shown apart.
"""

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import orjson

from benchmarks.common import heading, table
from es_ttc.encoders import load_encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.ingest.compose import compose, content_hash
from es_ttc.ingest.encode import DocumentFeatures, action_lines, token_features
from es_ttc.mappings.index import IndexOptions, create_index
from es_ttc.mappings.spec import IndexSpec
from es_ttc.settings import EngineSettings
from es_ttc.vectors.tokens import Float32

INDEX = "benchmark-gateway"
SCRIPTED = "benchmark-gateway-scripted"
QUERY = "one query for all"
ENCODER = "minilm@onnx"
GROUPS = 12
WINDOW = 100
TOKENS = 256
DIMS = 384
CONNECTIONS = 16
SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    url = parser.parse_args().engine
    product = asyncio.run(_fill(url))
    try:
        with _gateway(url) as gateway, _gateway(url, feature_cache_mb=0) as forgetful:
            _report(url, gateway, forgetful, product)
    finally:
        asyncio.run(_clear(url))


def _report(url: str, gateway: str, forgetful: str, product: str) -> None:
    data = f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, on {product}, loopback"
    print(heading("Gateway", data=data, packages=("aiohttp", "uvicorn", "starlette", "numpy")))
    columns = ("pass-through", "direct p50 ms", "gateway p50 ms", "added ms", "p95 ms")
    print(table(columns, _pass_through(url, gateway)))
    print(table(("spectral, window 100", "p50 ms", "p95 ms"), _spectral(url, gateway, forgetful)))
    if product == "opensearch":
        print(
            table(
                (f"token vectors of one window of {WINDOW}", "p50 ms", "added ms", "of spectral"),
                _scripted(url, gateway),
            )
        )
    print(table((f"{CONNECTIONS} connections", "requests/s", "of direct"), _throughput(url, gateway)))


async def _fill(url: str) -> str:
    engine = await connect(EngineSettings(engine=url))
    try:
        product = (await engine.capabilities()).product
        await _delete(engine)
        await _index(engine)
        if product == "opensearch":
            await _index_scripted(engine)
        return product
    finally:
        await engine.close()


async def _clear(url: str) -> None:
    engine = await connect(EngineSettings(engine=url))
    try:
        await _delete(engine)
    finally:
        await engine.close()


async def _delete(engine: Engine) -> None:
    for index in (INDEX, SCRIPTED):
        if await engine.exists(index):
            await engine.delete_index(index)


async def _index(engine: Engine) -> None:
    spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",))
    await create_index(engine, INDEX, spec, IndexOptions(shards=1, replicas=0))
    for group in range(GROUPS):
        lines: list[bytes] = []
        for name, text, matrix in _documents(group):
            lines += action_lines(name, orjson.dumps({"text": text}), "", _features(matrix, spec, text), spec)
        await _bulk(engine, INDEX, lines)
    await engine.refresh(INDEX)


async def _index_scripted(engine: Engine) -> None:
    """Write the first window once more, its token vectors rounded to five digits: the script has less to read so."""
    body = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0},
        "mappings": {"properties": {"text": {"type": "text"}, "tokens": {"type": "object", "enabled": False}}},
    }
    await engine.create_index(SCRIPTED, body)
    for name, text, matrix in _documents(0):
        source = {"text": text, "tokens": np.round(matrix.astype(np.float64), 5)}
        line = orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY)
        await _bulk(engine, SCRIPTED, [orjson.dumps({"index": {"_id": name}}), line])
    await engine.refresh(SCRIPTED)


async def _bulk(engine: Engine, index: str, lines: Sequence[bytes]) -> None:
    for start in range(0, len(lines), 40):
        items = await engine.bulk(index, lines[start : start + 40])
        assert all(item.ok for item in items), next(item.error for item in items if not item.ok)


def _documents(group: int) -> Iterator[tuple[str, str, Float32]]:
    """Yield a group's documents, the same at every call: id, text, unit token vectors."""
    rng = np.random.default_rng(group)
    for number in range(WINDOW):
        text = f"group{group} " + " ".join(f"word{word}" for word in rng.integers(0, 500, 200))
        matrix = rng.standard_normal((TOKENS, DIMS), dtype=np.float32)
        yield f"{group}-{number}", text, matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def _features(matrix: Float32, spec: IndexSpec, text: str) -> DocumentFeatures:
    tokens = token_features(matrix, np.zeros((TOKENS, 3), dtype=np.int32), spec)
    content = content_hash(*compose({"text": text}, spec.text_fields), spec)
    return DocumentFeatures(content, matrix[0], tokens, truncated=False)


@contextmanager
def _gateway(engine: str, *, feature_cache_mb: int = 512) -> Iterator[str]:
    environment = {**os.environ, "ES_TTC_FEATURE_CACHE_MB": str(feature_cache_mb)}
    command = [
        sys.executable,
        "-m",
        "es_ttc",
        "serve",
        "--engine",
        engine,
        "--port",
        "0",
        "--encoder",
        ENCODER,
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        url = json.loads(text)["url"]
        with _Client(url) as client:
            while not client.get("/_ttc/ready")["ready"]:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


class _Client:
    """One kept connection, with as little time of its own as Python has to offer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def __enter__(self) -> "_Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def search(self, body: bytes, index: str = INDEX) -> Any:
        return self._call("POST", f"/{index}/_search", body)

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        self._connection.request(method, path, body, {"content-type": "application/json"})
        return json.loads(self._connection.getresponse().read())


def _query(group: int, *, rescore: bool, size: int = 10) -> bytes:
    body: dict[str, Any] = {"query": {"match": {"text": f"group{group}"}}, "size": size, "_source": False}
    if rescore:
        body["rescore"] = {"window_size": WINDOW, "ttc": {"method": "spectral", "query_text": QUERY}}
    return orjson.dumps(body)


def _ms(times: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def _pass_through(engine: str, gateway: str, repeat: int = 400) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    requests: dict[str, Any] = {
        "GET /": lambda client: client.get("/"),
        "_search, 10 hits": lambda client: client.search(_query(0, rescore=False)),
    }
    with _Client(engine) as direct, _Client(gateway) as through:
        for name, request in requests.items():
            times: dict[int, list[float]] = {0: [], 1: []}
            for turn in range(2 * repeat + 40):
                started = time.perf_counter()
                request((direct, through)[turn % 2])
                if turn >= 40:
                    times[turn % 2].append((time.perf_counter() - started) * 1000)
            (before, _), (after, late) = _ms(times[0]), _ms(times[1])
            rows.append((name, f"{before:.2f}", f"{after:.2f}", f"{after - before:.2f}", f"{late:.2f}"))
    return rows


def _spectral(engine: str, gateway: str, forgetful: str, repeat: int = 8) -> list[tuple[str, ...]]:
    """Measure windows whose features are in the gateway's memory, and by a gateway that keeps none in memory."""
    direct: list[float] = []
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with _Client(engine) as plain, _Client(gateway) as warm, _Client(forgetful) as cold:
        clients = {"cold": cold, "warm": warm}
        for turn in range(repeat):
            for group in range(GROUPS):
                started = time.perf_counter()
                plain.search(_query(group, rescore=False))
                if turn:  # the first turn encodes the query, fills the memory, and lets the engine compile
                    direct.append((time.perf_counter() - started) * 1000)
                for name, client in clients.items():
                    started = time.perf_counter()
                    answer = client.search(_query(group, rescore=True))
                    total = (time.perf_counter() - started) * 1000
                    ttc = answer["ttc"]
                    assert ttc["applied"], ttc
                    assert ttc["scored"] == WINDOW, ttc
                    if turn:
                        assert ttc["features_from_memory"] == (WINDOW if name == "warm" else 0), ttc
                        runs[name].append({"total": total, **ttc["took"]})
    base = statistics.median(direct)
    rows: list[tuple[str, ...]] = [
        ("the same query, engine alone, 10 hits", *(f"{value:.1f}" for value in _ms(direct)))
    ]
    for name, measured in runs.items():
        totals = [run["total"] for run in measured]
        rows.append((f"{name}: added to it", *(f"{value - base:.1f}" for value in _ms(totals))))
        rows.extend(
            (f"{name}: {stage}", *(f"{value:.1f}" for value in _ms([run[stage] for run in measured])))
            for stage in ("first_pass", "features", "encode", "score")
        )
    encoder = load_encoder(ENCODER)
    times = []
    for number in range(20):
        started = time.perf_counter()
        encoder.encode([f"one query for all of them {number}"], role="query", tokens=False)
        times.append((time.perf_counter() - started) * 1000)
    rows.append(("encoder, one new query", *(f"{value:.1f}" for value in _ms(times))))
    return rows


def _scripted(engine: str, gateway: str, repeat: int = 5) -> list[tuple[str, ...]]:
    """Score one window by both, in turns; each is set beside the same search without a rescore."""
    vector = load_encoder(ENCODER).encode([QUERY], role="query", tokens=False).pooled
    script = {"source": "lateInteractionScore(params.query, 'tokens', params._source)", "params": {"query": vector}}
    scored = {"script_score": {"query": {"match_all": {}}, "script": script}}
    native = orjson.loads(_query(0, rescore=False))
    native["rescore"] = {"window_size": WINDOW, "query": {"rescore_query": scored, "query_weight": 0}}
    body = orjson.dumps(native, option=orjson.OPT_SERIALIZE_NUMPY)
    with _Client(engine) as direct, _Client(gateway) as through:
        calls: dict[str, Callable[[], Any]] = {
            "script, no rescore": lambda: direct.search(_query(0, rescore=False), SCRIPTED),
            "script": lambda: direct.search(body, SCRIPTED),
            "spectral, no rescore": lambda: direct.search(_query(0, rescore=False)),
            "spectral": lambda: through.search(_query(0, rescore=True)),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(repeat + 1):
            for name, call in calls.items():
                started = time.perf_counter()
                answer = call()
                if turn:
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


def _throughput(engine: str, gateway: str) -> list[tuple[str, ...]]:
    plain, ours = _query(0, rescore=False), _query(0, rescore=True)
    direct = asyncio.run(_rate(engine, plain))
    rows: list[tuple[str, ...]] = [("engine alone", f"{direct:.0f}", "1.00")]
    for name, body in (("pass-through", plain), ("spectral, warm", ours)):
        rate = asyncio.run(_rate(gateway, body))
        rows.append((name, f"{rate:.0f}", f"{rate / direct:.2f}"))
    return rows


async def _rate(url: str, body: bytes) -> float:
    """Answered requests a second of clients that each wait for their answer."""
    done = 0
    end = time.perf_counter() + SECONDS
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:

        async def client() -> None:
            nonlocal done
            while time.perf_counter() < end:
                async with session.post(
                    f"{url}/{INDEX}/_search", data=body, headers={"content-type": "application/json"}
                ) as response:
                    await response.read()
                    assert response.status == 200, response.status
                done += 1

        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return done / SECONDS


if __name__ == "__main__":
    main()

"""What it costs to find vectors that OpenSearch cannot search, before each kNN search of the gateway.

    python -m benchmarks.knn_index_check --engine http://127.0.0.1:9200

The gateway's first request of a `knn` clause names encoders and indices; on OpenSearch it also counts documents whose
vector is in no searchable field. Both forms are sent in turn, in one run, beside whole searches through a gateway. The
engine caches such requests until the index changes; so they are measured with and without its cache.
"""

import argparse
import asyncio
import logging
import os
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import orjson

from benchmarks.common import heading, table
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import ENCODER, HASH, STATE, VECTOR, IndexSpec
from es_ttc.serving.knn.searched_indices import count_request
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings, Settings

_A_BULK = 1000


async def written(engine: Engine, name: str, encoder: Encoder, documents: int) -> None:
    """Make an index of documents with random vectors."""
    await create_index(engine, name, IndexSpec(encoder.identity, tokens="none"), IndexOptions(shards=1, replicas=0))
    rng = np.random.default_rng(1)
    for start in range(0, documents, _A_BULK):
        vectors = rng.normal(size=(_A_BULK, encoder.identity.dims)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        lines = []
        for number, vector in enumerate(vectors.tolist(), start):
            root = {VECTOR: vector, ENCODER: encoder.identity.key, HASH: f"stored-{number}", STATE: "ready"}
            document = {"text": f"document {number}", "ttc": {key.partition(".")[2]: root[key] for key in root}}
            lines += [orjson.dumps({"index": {"_id": f"d{number}"}}), orjson.dumps(document)]
        items = await engine.bulk(name, lines)
        assert all(item.ok for item in items), items[0].error
    await engine.refresh(name)


async def paired(calls: Mapping[str, Callable[[], Awaitable[Any]]], repeat: int) -> dict[str, list[float]]:
    """Return the milliseconds of some calls, made in turn, each round in another order."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(-5, repeat):
        for place in range(len(names)):
            name = names[(place + round_) % len(names)]
            began = time.perf_counter()
            await calls[name]()
            if round_ >= 0:
                times[name].append((time.perf_counter() - began) * 1000)
    return times


async def measured(engine: Engine, gateway: Engine, name: str, repeat: int) -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    clause = {"field": VECTOR, "query_text": "a document about rivers", "k": 10, "ttc": {"method": "dense"}}
    whole = {"knn": clause, "size": 10, "_source": False}
    bodies = {found: count_request({}, unsearchable=found) for found in (False, True)}

    def asks(found: bool, cache: str) -> Callable[[], Awaitable[Any]]:
        return lambda: engine.search(name, bodies[found], request_cache=cache)

    times = await paired(
        {
            **{f"{cache} {found}": asks(found, cache) for found in bodies for cache in ("true", "false")},
            "whole": lambda: gateway.search(name, whole),
        },
        repeat,
    )
    rows: list[tuple[str, ...]] = []
    total = statistics.median(times["whole"])
    for cache, title in (("true", "cached by the engine"), ("false", "not cached")):
        without, with_it = times[f"{cache} False"], times[f"{cache} True"]
        more = statistics.median(b - a for a, b in zip(without, with_it, strict=True))
        rows.append(
            (
                title,
                f"{statistics.median(without):.2f}",
                f"{statistics.median(with_it):.2f}",
                f"{more:+.2f}",
                f"{total:.1f}",
                f"{100 * more / total:+.1f} %",
            )
        )
    return rows


async def run(url: str, documents: int, repeat: int, encoder: Encoder) -> None:
    """Measure, print, and delete the index."""
    engine = await connect(EngineSettings(engine=url))
    name = f"bench-knn-check-{uuid.uuid4().hex[:8]}"
    found = await engine.capabilities()
    try:
        await written(engine, name, encoder, documents)
        settings = GatewaySettings(engine=url, port=0, default_timeout_ms=20_000)
        with running_gateway(settings, load=lambda _name, _folder: encoder) as address:
            gateway = await connect(EngineSettings(engine=address))
            try:
                rows = await measured(engine, gateway, name, repeat)
            finally:
                await gateway.close()
    finally:
        await engine.delete_index(name)
        await engine.close()
    load = os.getloadavg()[0]
    data = (
        f"{documents:,} random vectors, {encoder.identity.dims} dimensions, one shard; {repeat} rounds, load {load:.0f}"
    )
    print(heading(f"Counting vectors that kNN cannot search, {found.engine}", data=data))
    columns = ("request", "ms without", "ms with", "median difference, ms", "whole search, ms", "share")
    print(table(columns, rows))


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default=EngineSettings().engine)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=200)
    arguments = parser.parse_args()
    configure_logs("auto", logging.ERROR)
    encoder = load_encoder("minilm", cache_dir=Settings().cache_dir)
    asyncio.run(run(arguments.engine, arguments.documents, arguments.repeat, encoder))


if __name__ == "__main__":
    main()

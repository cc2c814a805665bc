"""Documents that clients write through the gateway: bulks beside direct ones, and beside the encoder's own rate.

    python -m benchmarks.written_documents --engine http://127.0.0.1:9200

The same bulks go to the engine and through the gateway in turns, to a plain index and to one with `--encode later`.
Then documents go through the gateway to an index with `--encode now`, all of which are encoded, beside the encoder
alone on the same texts before and after. Last, one long bulk goes to that index, and the gateway's memory is watched.
"""

import argparse
import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil

from benchmarks.common import heading, table
from benchmarks.served import ENCODER, Gateway, delete, gateway, opened, percentiles
from es_ttc.encoders import Encoder, load_encoder
from es_ttc.index.ingest.encode import encode_documents
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.lab.evaluation.datasets import load_collection
from es_ttc.serving.http.upstream import Upstream
from es_ttc.serving.writes.bulk import names_in
from es_ttc.serving.writes.encoding import with_features
from es_ttc.serving.writes.followed_indices import FollowedIndices, PipelineIndex
from es_ttc.settings import GatewaySettings

DATA = Path(__file__).parents[2] / "shared" / "data" / "scifact"
INDEX = "benchmark-written"
BULK = 500
BATCH = 32
MIB = 2**20
JSON = {"content-type": "application/json"}
HEADERS = [(b"authorization", b"ApiKey of-a-caller"), (b"content-type", b"application/json")]
NDJSON = {"content-type": "application/x-ndjson"}

Source = dict[str, str]


class Connection:
    """One kept connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)

    def send(self, method: str, path: str, body: bytes) -> tuple[Any, str | None]:
        """Send lines of JSON; return the answer and whether the documents were encoded."""
        self._connection.request(method, path, body, NDJSON if path.endswith("_bulk") else JSON)
        response = self._connection.getresponse()
        answer = orjson.loads(response.read())
        assert response.status < 300, answer
        assert not answer.get("errors"), answer
        return answer, response.headers.get("x-ttc-encoded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--data", type=Path, default=DATA, help="A BEIR collection.")
    parser.add_argument("--documents", type=int, default=5000, help="Of each bulk run.")
    parser.add_argument("--encoded", type=int, default=500, help="That are encoded on their way.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stream-mb", type=int, default=60, help="Size of the long bulk; 0 for none.")
    arguments = parser.parse_args()
    sources = [document.source for document in load_collection(arguments.data).documents]
    encoder = load_encoder(ENCODER)
    spec = IndexSpec(encoder.identity)
    names = {"plain": f"{INDEX}-plain", "--encode later": f"{INDEX}-later", "--encode now": f"{INDEX}-now"}
    data = f"{arguments.data.name}, bulks of {BULK} documents"
    print(heading("Documents written through the gateway", data=data, packages=("aiohttp", "uvicorn", "onnxruntime")))
    print(f"Load average: {os.getloadavg()[0]:.1f}\n")
    settings = {"write_timeout_ms": 600_000, "write_features_mb": 1000}
    try:
        for kind in ("plain", "--encode later"):
            asyncio.run(make(arguments.engine, names[kind], spec))
        follow(arguments.engine, names["--encode later"], "--encode later")
        with gateway(arguments.engine, **settings) as through:
            report_bulks(arguments.engine, through.url, names, sources, arguments.documents, arguments.rounds)
            asyncio.run(report_decision(arguments.engine, names["plain"], sources))
            report_single(arguments.engine, through.url, names["plain"], sources, 300)
            asyncio.run(make(arguments.engine, names["--encode now"], spec))
            follow(arguments.engine, names["--encode now"], "--encode now")
            report_encoding(through.url, names["--encode now"], sources[: arguments.encoded], spec, encoder)
        if arguments.stream_mb:
            with gateway(arguments.engine) as through:
                report_stream(through, names["--encode now"], sources, arguments.stream_mb * MIB)
    finally:
        clear(arguments.engine, names.values())


async def make(url: str, name: str, spec: IndexSpec) -> None:
    """Make an index for a kind, with the options of the others."""
    async with opened(url) as engine:
        await delete(engine, name)
        if name.endswith("plain"):
            await engine.create_index(name, {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
        else:
            await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))


def follow(url: str, name: str, encode: str) -> None:
    """Have writes to an index followed."""
    _command(url, "index", "pipeline", name, *encode.split())


def clear(url: str, names: Iterable[str]) -> None:
    """Delete the indices with their pipelines and jobs."""
    for name in names:
        _command(url, "index", "pipeline", name, "--remove", check=False)
        asyncio.run(_delete(url, name))


async def _delete(url: str, name: str) -> None:
    async with opened(url) as engine:
        await delete(engine, name)


def _command(url: str, *arguments: str, check: bool = True) -> None:
    command = [sys.executable, "-m", "es_ttc", *arguments, "--engine", url]
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


def bulks(sources: Sequence[Source], count: int, *, index: str) -> Iterator[bytes]:
    """Yield bulks of documents, which repeat the sources."""
    for start in range(0, count, BULK):
        lines: list[bytes] = []
        for number in range(start, min(start + BULK, count)):
            action = {"index": {"_index": index, "_id": str(number)}}
            lines += (orjson.dumps(action), orjson.dumps(sources[number % len(sources)]))
        yield b"\n".join(lines) + b"\n"


def timed(url: str, index: str, sources: Sequence[Source], count: int) -> float:
    """Return documents a second of bulks, one after the other."""
    bodies = list(bulks(sources, count, index=index))
    connection = Connection(url)
    begun = time.perf_counter()
    for body in bodies:
        connection.send("POST", "/_bulk", body)
    return count / (time.perf_counter() - begun)


def report_bulks(
    engine: str, through: str, names: dict[str, str], sources: Sequence[Source], count: int, rounds: int
) -> None:
    """Compare bulks through the gateway with direct ones."""
    rows = []
    for kind in ("plain", "--encode later"):
        rates: dict[str, list[float]] = {engine: [], through: []}
        for turn in range(rounds + 1):
            for url in (engine, through) if turn % 2 else (through, engine):
                rate = timed(url, names[kind], sources, count)
                if turn:  # the first one warms up
                    rates[url].append(rate)
        direct, passed = (statistics.median(rates[url]) for url in (engine, through))
        ratios = [there / here for here, there in zip(rates[engine], rates[through], strict=True)]
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        rows.append((kind, f"{direct:.0f}", f"{passed:.0f}", f"{statistics.median(ratios):.2f} ({spread})"))
    print(table(("index", "direct, docs/s", "gateway, docs/s", "share of direct"), rows))


def report_single(engine: str, through: str, index: str, sources: Sequence[Source], count: int) -> None:
    """Compare single writes to an index that is not followed."""
    connections = {"direct": Connection(engine), "gateway": Connection(through)}
    times: dict[str, list[float]] = {name: [] for name in connections}
    for number in range(count):
        for name, connection in connections.items():
            begun = time.perf_counter()
            connection.send("PUT", f"/{index}/_doc/{number}", orjson.dumps(sources[number % len(sources)]))
            times[name].append((time.perf_counter() - begun) * 1000)
    rows = [(name, *(f"{value:.2f}" for value in percentiles(taken))) for name, taken in times.items()]
    print(table(("one document, plain index", "p50 ms", "p95 ms"), rows))


async def report_decision(engine: str, index: str, sources: Sequence[Source]) -> None:
    """Measure what a write to an index that is not followed costs the gateway before it is forwarded."""
    body = next(bulks(sources, BULK, index=index))[: 64 * 1024]
    async with Upstream(GatewaySettings(engine=engine)) as upstream:
        indices = FollowedIndices(upstream)

        async def follow(name: str) -> PipelineIndex | None:
            return await indices.of(name, HEADERS)

        async def follow_bulk() -> bool:
            return any([await follow(name) for name in names_in(body, None)])

        rows = []
        for name, decide, times in (
            ("one document", lambda: follow(index), 20_000),
            ("64 KiB of a bulk", follow_bulk, 2000),
        ):
            assert not await decide()
            begun = time.process_time()
            for _ in range(times):
                await decide()
            rows.append((name, f"{(time.process_time() - begun) / times * 1e6:.0f}"))
    print(table(("to an index that is not followed", "µs of processor time to decide"), rows))


def report_encoding(through: str, index: str, sources: Sequence[Source], spec: IndexSpec, encoder: Encoder) -> None:
    """Compare bulks whose documents are encoded on their way with the encoder alone."""
    before = alone(sources, spec, encoder)
    connection = Connection(through)
    begun = time.perf_counter()
    flags = [connection.send("POST", "/_bulk", body)[1] for body in bulks(sources, len(sources), index=index)]
    rate = len(sources) / (time.perf_counter() - begun)
    assert set(flags) == {"true"}, flags
    after = alone(sources, spec, encoder)
    own = statistics.mean((before, after))
    lines = [orjson.dumps(source) for source in sources[:BATCH]]
    results = with_features(lines, spec, "0" * 32, encoder)
    added = statistics.mean(len(result) - len(line) for line, result in zip(lines, results, strict=True))
    text = statistics.mean(map(len, lines))
    rows = [(f"{own:.1f} ({before:.1f}, {after:.1f})", f"{rate:.1f}", f"{rate / own:.2f}", f"{added / text:.0f}")]
    columns = ("encoder alone, docs/s", "bulk with --encode now, docs/s", "share", "bytes of features a byte of text")
    print(table(columns, rows))
    times = []
    for number, source in enumerate(sources[:100]):
        begun = time.perf_counter()
        assert connection.send("PUT", f"/{index}/_doc/{number}", orjson.dumps(source))[1] == "true"
        times.append((time.perf_counter() - begun) * 1000)
    row = ("gateway", *(f"{one:.1f}" for one in percentiles(times)))
    print(table(("one document, --encode now", "p50 ms", "p95 ms"), [row]))


def alone(sources: Sequence[Source], spec: IndexSpec, encoder: Encoder) -> float:
    """Return the encoder's own rate on the same texts, in documents a second."""
    begun = time.perf_counter()
    for start in range(0, len(sources), BATCH):
        encode_documents(sources[start : start + BATCH], spec, encoder)
    return len(sources) / (time.perf_counter() - begun)


def report_stream(through: Gateway, index: str, sources: Sequence[Source], size: int) -> None:
    """Send one long bulk, most of which is written as pending when the time for encoding is over."""
    body = bytearray()
    number = 0
    while len(body) < size:
        body += b'{"index":{"_id":"s%d"}}\n%b\n' % (number, orjson.dumps(sources[number % len(sources)]))
        number += 1
    process = psutil.Process(through.pid)
    Connection(through.url).send("PUT", f"/{index}/_doc/warm", orjson.dumps(sources[0]))
    before = process.memory_info().rss
    with watched(process) as peak:
        begun = time.perf_counter()
        _, encoded = Connection(through.url).send("POST", f"/{index}/_bulk", bytes(body))
        seconds = time.perf_counter() - begun
    rows = [
        (f"{len(body) / MIB:.0f}", number, f"{seconds:.1f}", encoded, f"{before / MIB:.0f}", f"{peak[0] / MIB:.0f}")
    ]
    print(table(("bulk, MiB", "documents", "seconds", "x-ttc-encoded", "gateway before, MiB", "at most, MiB"), rows))


@contextmanager
def watched(process: psutil.Process) -> Iterator[list[int]]:
    """Watch a process's memory."""
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()

"""From a client's write to a search that finds it: latency at one write a second, the drain of a backlog, and kills.

A worker and its Redis are real processes. Documents are written by plain HTTP to the engine, and looked for through a
gateway: a document is searchable when `spectral` scores it. The encoder's own rate is that of the same texts in the
same batches, encoded in this process without reading or writing. The kills are SIGKILLs of a worker and all its
processes at random moments while documents are written, changed and deleted.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.common import heading, table
from es_ttc.encoders import load_encoder
from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands
from es_ttc.enrichment.jobs.following import follow
from es_ttc.enrichment.jobs.record import encoding_job_id
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.index.ingest.compose import compose, content_hash
from es_ttc.index.ingest.encode import encode_texts
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from es_ttc.serving.logs import configure_logs
from es_ttc.serving.server import running_gateway
from es_ttc.settings import EngineSettings, GatewaySettings, Settings

SYLLABLES = ("ba", "cor", "den", "fi", "gal", "hum", "in", "jo", "ker", "lam", "mi", "nor", "os", "per", "qua", "riv")
BATCH_CHARACTERS = 64 * 1024
POLL_SECONDS = 0.05
SAVED_SECONDS = 5.0
"""After this time a worker has stored how far it is."""
LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Site:
    """Where the benchmark runs."""

    engine: str
    gateway: str
    index: str
    spec: IndexSpec
    settings: Settings


def text(rng: random.Random, words: int) -> str:
    """Return made-up words."""
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(words))


def call(method: str, url: str, body: bytes | None = None, kind: str = "application/json") -> Any:
    """Send one request as any client does; return the decoded answer."""
    request = urllib.request.Request(url, body, {"content-type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


class Worker:
    """`es-ttc worker --only encode` in a process of its own."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        told = {
            "ES_TTC_ENGINE": settings.engine,
            "ES_TTC_ENCODER": settings.encoder,
            "ES_TTC_JOBS_INDEX": settings.jobs_index,
        }
        self._log = (folder / "worker.log").open("ab")
        command = [sys.executable, "-m", "es_ttc", "worker", "--only", "encode"]
        self.process = subprocess.Popen(
            command, env={**os.environ, **told}, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it with all its processes."""
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(30)
        self._log.close()

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._log.close()


@contextmanager
def working(settings: Settings, folder: Path) -> Iterator[Worker]:
    """Run a worker during the block."""
    worker = Worker(settings, folder)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop()


def is_scored(site: Site, name: str) -> bool:
    """Return whether a search finds a document and `spectral` scores it."""
    rescore = {"window_size": 10, "ttc": {"method": "spectral", "query_text": "a text of one second"}}
    body = {"query": {"ids": {"values": [name]}}, "rescore": rescore, "_source": False}
    found = call("POST", f"{site.gateway}/{site.index}/_search", orjson.dumps(body))
    return bool(found["hits"]["hits"]) and found["ttc"].get("scored") == 1


def latency(site: Site, name: str, document: dict[str, Any]) -> float:
    """Write one document; return the seconds until it is searchable."""
    begun = time.monotonic()
    call("PUT", f"{site.engine}/{site.index}/_doc/{name}", orjson.dumps(document))
    while not is_scored(site, name):
        if time.monotonic() - begun > LONGEST_SECONDS:
            raise SystemExit(f"[{name}] is not searchable after {LONGEST_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - begun


def latencies(site: Site, writes: int, every: float, words: int, rng: random.Random) -> list[float]:
    """Write one document at an interval; return the seconds until each is searchable."""
    latency(site, "warm", {"title": "warm", "text": text(rng, words)})  # the worker loads its encoder
    with ThreadPoolExecutor(64) as writers:
        waiting = []
        begun = time.monotonic()
        for number in range(writes):
            time.sleep(max(0.0, begun + number * every - time.monotonic()))
            document = {"title": f"write {number}", "text": text(rng, words)}
            waiting.append(writers.submit(latency, site, f"w{number}", document))
        return [each.result() for each in waiting]


def encoder_rate(encoder: Encoder, documents: Sequence[dict[str, str]], spec: IndexSpec) -> float:
    """Return the documents that the encoder encodes in a second, in the batches of a fill."""
    composed = [compose(document, spec.text_fields) for document in documents]
    begun = time.monotonic()
    batch, size = [], 0
    for each in composed:
        batch.append(each)
        size += len(each[0])
        if size > BATCH_CHARACTERS:
            encode_texts(batch, spec, encoder)
            batch, size = [], 0
    if batch:
        encode_texts(batch, spec, encoder)
    return len(composed) / (time.monotonic() - begun)


@dataclass(frozen=True, slots=True)
class Drain:
    """How a backlog was encoded.

    Attributes:
        rate: Documents a second.
        busy: The share of the time in which the encoder was busy; what is missing are reading and writing.
    """

    rate: float
    busy: float


async def drain(engine: Engine, site: Site, documents: Sequence[dict[str, str]]) -> Drain:
    """Write a backlog while the job is paused; encode it after it is resumed."""
    job, store = encoding_job_id(site.index), JobStore(engine, site.settings.jobs_index)
    await commands.pause(engine, site.settings, job)
    await asyncio.sleep(3)
    lines = [
        line
        for number, document in enumerate(documents)
        for line in (orjson.dumps({"index": {"_id": f"b{number}"}}), orjson.dumps(document))
    ]
    for start in range(0, len(lines), 2000):
        await engine.bulk(site.index, lines[start : start + 2000])
    await engine.refresh(site.index)
    await commands.resume(engine, site.settings, job)
    first, total = None, len(documents)
    while True:  # from the first document that is encoded, so that the pickup of the job is not counted
        left = await engine.count(site.index, {"bool": {"must_not": [{"exists": {"field": "ttc.hash"}}]}})
        now = time.monotonic()
        if left < total and first is None:
            first, counted = now, total - left
            before = (await store.checkpoints.get(job)).encoder_seconds
        if left == 0 and first is not None:
            await asyncio.sleep(SAVED_SECONDS)
            encoding = (await store.checkpoints.get(job)).encoder_seconds - before
            return Drain((total - counted) / (now - first), encoding / (now - first))
        await engine.refresh(site.index)
        await asyncio.sleep(1.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left after the kills.

    Attributes:
        kills: Workers killed.
        writes: Writes, deletions included.
        documents: Documents that must be there.
        lost: Those that are not there.
        stale: Those whose features are not those of their present text.
        deleted: Documents that were deleted and are there.
        counted: Documents that were never deleted, whose `_version` counts their writes.
        doubled: Those among them that es-ttc wrote more often than clients.
        seconds: In all.
    """

    kills: int
    writes: int
    documents: int
    lost: int
    stale: int
    deleted: int
    counted: int
    doubled: int
    seconds: float


async def kills(
    engine: Engine, site: Site, folder: Path, workers: int, count: int, writes: int, words: int, rng: random.Random
) -> Outcome:
    """Write, change and delete documents while one of the workers is killed at random moments, and replaced."""
    begun = time.monotonic()
    base = f"{site.engine}/{site.index}"
    written: dict[str, int] = {}
    gone: set[str] = set()
    once_deleted: set[str] = set()
    moments = sorted(rng.sample(range(1, writes), count))
    started = [Worker(site.settings, folder) for _ in range(workers)]
    done = 0
    for number in range(writes):
        name = f"k{rng.randrange(writes // 2)}"
        document = orjson.dumps({"title": f"kill {number}", "text": text(rng, words)})
        there = name in written and name not in gone
        if there and rng.random() < 0.1:
            await asyncio.to_thread(call, "DELETE", f"{base}/_doc/{name}")
            gone.add(name)
            once_deleted.add(name)
        elif there and rng.random() < 0.3:
            lines = orjson.dumps({"update": {"_id": name}}) + b'\n{"doc":' + document + b"}\n"
            await asyncio.to_thread(call, "POST", f"{base}/_bulk", lines, "application/x-ndjson")
            written[name] += 1
        else:
            await asyncio.to_thread(call, "PUT", f"{base}/_doc/{name}", document)
            written[name] = written.get(name, 0) + 1
            gone.discard(name)
        if done < count and number >= moments[done]:
            await asyncio.sleep(rng.uniform(0.0, 8.0))  # at any moment of its start and of its work
            await asyncio.to_thread(started.pop(rng.randrange(workers)).kill)
            started.append(Worker(site.settings, folder))
            done += 1
    try:
        await idle(engine, site)
    finally:
        for worker in started:
            await asyncio.to_thread(worker.stop)
    found = await documents_of(engine, site, list(written))
    alive = written.keys() - gone
    counted = alive - once_deleted
    return Outcome(
        kills=done,
        writes=writes,
        documents=len(alive),
        lost=len(alive - found.keys()),
        stale=sum(not fits for fits, _ in found.values()),
        deleted=len(found.keys() & gone),
        counted=len(counted),
        doubled=sum(found[name][1] > 2 * written[name] for name in counted if name in found),
        seconds=time.monotonic() - begun,
    )


async def documents_of(engine: Engine, site: Site, names: Sequence[str]) -> dict[str, tuple[bool, int]]:
    """Return whether the features of documents are those of their text, and their `_version`."""
    found = {}
    for start in range(0, len(names), 1000):
        body = {
            "size": 1000,
            "version": True,
            "docvalue_fields": ["ttc.hash"],
            "query": {"ids": {"values": names[start : start + 1000]}},
        }
        for hit in (await engine.search(site.index, body))["hits"]["hits"]:
            composed, spans = compose(hit["_source"], site.spec.text_fields)
            fits = hit.get("fields", {}).get("ttc.hash") == [content_hash(composed, spans, site.spec)]
            found[hit["_id"]] = (fits, hit["_version"])
    return found


async def idle(engine: Engine, site: Site) -> None:
    """Wait until nothing is pending."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        await engine.refresh(site.index)
        status = await commands.shown(engine, site.settings, encoding_job_id(site.index))
        if status.state == "idle":
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the job is not idle after {LONGEST_SECONDS:g} s: {status}")
        await asyncio.sleep(0.5)


async def run(arguments: argparse.Namespace, folder: Path) -> None:
    rng = random.Random(arguments.seed)
    name = f"bench-writes-{uuid.uuid4().hex[:8]}"
    settings = Settings(engine=arguments.engine, encoder=arguments.encoder, jobs_index=f"{name}-jobs")
    encoder = await asyncio.to_thread(load_encoder, settings.encoder, cache_dir=settings.cache_dir)
    spec = IndexSpec(encoder.identity)
    engine = await connect(EngineSettings(engine=arguments.engine))
    gateway = GatewaySettings(engine=arguments.engine, port=0, default_timeout_ms=20_000)
    try:
        with redirect_stdout(sys.stderr), running_gateway(gateway, load=lambda _name, _folder: encoder) as url:
            configure_logs("json", logging.CRITICAL)
            site = Site(arguments.engine.rstrip("/"), url, name, spec, settings)
            await create_index(engine, name, spec, IndexOptions(shards=1, replicas=0))
            await follow(engine, settings, name, "later")
            rows = await measured(arguments, engine, site, encoder, folder, rng)
    finally:
        for index in await engine.request("GET", f"/{name}*", params={"expand_wildcards": "all"}):
            await engine.delete_index(index)
        await engine.request("DELETE", f"/_ingest/pipeline/ttc-writes-{name}")
        await engine.close()
    product = await capabilities(arguments.engine)
    about = f"made-up texts of {arguments.words} words, seed {arguments.seed}, encoder {settings.encoder}, {product}"
    print(heading("From a write to a search that finds it", data=about, packages=("celery", "redis", "onnxruntime")))
    print(table(["what", "value"], rows))


async def capabilities(url: str) -> str:
    engine = await connect(EngineSettings(engine=url))
    try:
        found = await engine.capabilities()
        return f"{found.product} {'.'.join(map(str, found.version))}"
    finally:
        await engine.close()


async def measured(
    arguments: argparse.Namespace, engine: Engine, site: Site, encoder: Encoder, folder: Path, rng: random.Random
) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    with working(site.settings, folder):
        if arguments.writes:
            times = await asyncio.to_thread(latencies, site, arguments.writes, arguments.every, arguments.words, rng)
            times.sort()
            p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
            rows += [
                (f"writes, one every {arguments.every:g} s", len(times)),
                ("write to searchable by spectral, p50", f"{statistics.median(times):.2f} s"),
                ("p95", f"{p95:.2f} s"),
                ("longest", f"{times[-1]:.2f} s"),
            ]
        if arguments.backlog:
            backlog = [
                {"title": f"backlog {number}", "text": text(rng, arguments.words)}
                for number in range(arguments.backlog)
            ]
            own = await asyncio.to_thread(encoder_rate, encoder, backlog[: arguments.own], site.spec)
            drained = await drain(engine, site, backlog)
            rows += [
                ("backlog", f"{len(backlog):,} documents"),
                ("the encoder's own rate", f"{own:.1f} documents a second"),
                ("drained at", f"{drained.rate:.1f} documents a second, {drained.rate / own:.0%} of that"),
                ("the worker's encoder was busy", f"{drained.busy:.0%} of the time"),
            ]
    if arguments.kills:
        left = await kills(
            engine, site, folder, arguments.workers, arguments.kills, arguments.kill_writes, arguments.words, rng
        )
        rows += [
            ("workers", arguments.workers),
            ("one of them killed", f"{left.kills} times over {left.writes:,} writes, changes and deletions"),
            ("documents at the end", f"{left.documents:,}"),
            ("lost", left.lost),
            ("with features of another text, or none", left.stale),
            ("deleted, but there", left.deleted),
            ("encoded more often than written", f"{left.doubled} of {left.counted:,} whose versions tell"),
            ("seconds", f"{left.seconds:.0f}"),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, help="address of the engine")
    parser.add_argument("--encoder", default="minilm@onnx")
    parser.add_argument("--words", type=int, default=50, help="words of a text")
    parser.add_argument("--writes", type=int, default=120)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two writes")
    parser.add_argument("--backlog", type=int, default=10_000)
    parser.add_argument("--own", type=int, default=2000, help="documents that tell the encoder's own rate")
    parser.add_argument("--workers", type=int, default=1, help="workers at the same time, of which one is killed")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kill-writes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(parser.parse_args(), Path(folder)))


if __name__ == "__main__":
    main()

"""Many clients for a long time through one gateway: no error, and memory that stays flat. Needs a running engine.

    python -m benchmarks.soak --engine http://127.0.0.1:9200 [--seconds 600] [--clients 16]

Each client draws what it does next: a search that passes through, a rescored search, or a bulk write of documents with
new content, whose features then displace older ones in the gateway's memory. The run fails where an answer is not what
it should be, or where the gateway's memory grows after its first quarter.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice
from random import Random
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks.common import heading, table
from benchmarks.figures import BAR, INK, MUTED, STRONG, figure, save
from benchmarks.served import (
    ENCODER,
    GROUPS,
    TOKENS,
    WINDOW,
    Gateway,
    delete,
    documents,
    features,
    fill,
    gateway,
    opened,
    query,
)
from es_ttc.cli.common import progress_bar
from es_ttc.encoders import load_encoder
from es_ttc.index.ingest.encode import DocumentFeatures, action_lines
from es_ttc.index.mappings.spec import IndexSpec

INDEX = "benchmark-soak"
CACHE_MB = 64
TIMEOUT_MS = 60_000
"""Scoring budget: a search that is late for want of processors would be no error, but hide one."""
MIX = {"pass-through": 10, "rescored": 8, "bulk": 1}
BULK_DOCUMENTS = 5
SAMPLES = 120
FLAT = 1.10
"""How much greater the last quarter's memory may be than the second's."""


@dataclass
class Report:
    """What happened.

    Attributes:
        times: Milliseconds of every answer, by kind.
        errors: What was not as it should be.
        memory: ``(seconds, MiB)`` of the gateway's process.
    """

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """The memory's median in the last quarter against the second."""
        values = [size for _, size in self.memory]
        quarter = len(values) // 4
        return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter])


def main() -> None:
    """Run, print the table and the series, draw the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="http://127.0.0.1:9200")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=16)
    arguments = parser.parse_args()
    report = asyncio.run(_run(arguments.engine, arguments.clients, arguments.seconds))
    data = (
        f"{arguments.clients} clients for {arguments.seconds:.0f} s, windows of {WINDOW} documents of {TOKENS} tokens"
    )
    print(heading("Soak", data=data, packages=("aiohttp", "uvicorn", "uvloop", "numpy")))
    rows = [
        (kind, f"{len(times):,}", f"{statistics.median(times):.0f}", f"{max(times):.0f}")
        for kind, times in report.times.items()
    ]
    print(table(("requests", "answered", "p50 ms", "longest ms"), rows))
    print(
        f"Errors: {len(report.errors)}. Memory, last quarter against the second: {report.growth:.3f}. MiB over time:\n"
    )
    print(", ".join(f"{seconds:.0f} s {size:.0f}" for seconds, size in report.memory[:: max(1, SAMPLES // 20)]))
    draw(report)
    for error in report.errors[:5]:
        print(error, file=sys.stderr)
    if report.errors or report.growth > FLAT:
        sys.exit(1)


async def _run(engine_url: str, clients: int, seconds: float) -> Report:
    async with opened(engine_url) as engine:
        await fill(engine, INDEX)
        try:
            with gateway(engine_url, feature_cache_mb=CACHE_MB, scoring_timeout_ms=TIMEOUT_MS) as running:
                return await soak(running, INDEX, clients=clients, seconds=seconds)
        finally:
            await delete(engine, INDEX)


async def soak(running: Gateway, index: str, *, clients: int, seconds: float, groups: int = GROUPS) -> Report:
    """Send mixed traffic for so many seconds.

    Args:
        running: The gateway.
        index: Filled by :func:`benchmarks.served.fill`.
        clients: How many send at the same time.
        seconds: For how long.
        groups: Groups of documents in the index.
    """
    report = Report()
    writes = _Writes(groups)
    end = time.perf_counter() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:
        traffic = _Traffic(session, running.url, index, groups, writes, report)
        watching = asyncio.create_task(_watch(running.pid, report, seconds))
        await asyncio.gather(*(traffic.client(Random(number), end) for number in range(clients)))
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return report


class _Writes:
    """Bulk bodies of documents whose text stays and whose content hash is new every time."""

    def __init__(self, groups: int) -> None:
        self._spec = IndexSpec(load_encoder(ENCODER).identity, text_fields=("text",))
        self._documents: list[tuple[str, str, DocumentFeatures]] = [
            (name, text, features(matrix, self._spec, text))
            for group in range(groups)
            for name, text, matrix in islice(documents(group), BULK_DOCUMENTS)
        ]
        self._numbers = count()

    def body(self, random: Random) -> bytes:
        """Return the body of one bulk."""
        lines: list[bytes] = []
        for name, text, known in random.sample(self._documents, BULK_DOCUMENTS):
            fresh = replace(known, hash=f"fresh{next(self._numbers):x}")
            lines += action_lines(name, orjson.dumps({"text": text}), "", fresh, self._spec)
        return b"\n".join([*lines, b""])


class _Traffic:
    """What clients send, and what they expect."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, index: str, groups: int, writes: _Writes, report: Report
    ) -> None:
        self._session = session
        self._url = f"{url}/{index}"
        self._groups = groups
        self._writes = writes
        self._report = report
        self._kinds: dict[str, Callable[[Random], Awaitable[str | None]]] = {
            "pass-through": self._pass_through,
            "rescored": self._rescored,
            "bulk": self._bulk,
        }

    async def client(self, random: Random, end: float) -> None:
        """Send one request after the other until the end."""
        while (started := time.perf_counter()) < end:
            (kind,) = random.choices(list(MIX), list(MIX.values()))
            try:
                wrong = await self._kinds[kind](random)
            except (aiohttp.ClientError, TimeoutError) as error:
                wrong = f"{type(error).__name__}: {error}"
            self._report.times[kind].append((time.perf_counter() - started) * 1000)
            if wrong is not None:
                self._report.errors.append(f"{kind}: {wrong}")

    async def _pass_through(self, random: Random) -> str | None:
        answer = await self._post("_search", query(random.randrange(self._groups), rescore=False))
        return None if len(answer.get("hits", {}).get("hits", ())) == 10 else f"{answer!r:.300}"

    async def _rescored(self, random: Random) -> str | None:
        answer = await self._post("_search", query(random.randrange(self._groups), rescore=True))
        scores = [hit["_score"] for hit in answer.get("hits", {}).get("hits", ())]
        good = answer.get("ttc", {}).get("applied") and len(scores) == 10 and scores == sorted(scores, reverse=True)
        return None if good else f"{answer!r:.300}"

    async def _bulk(self, random: Random) -> str | None:
        answer = await self._post("_bulk", self._writes.body(random))
        return None if answer.get("errors") is False else f"{answer!r:.300}"

    async def _post(self, api: str, body: bytes) -> dict[str, Any]:
        kind = "application/x-ndjson" if api == "_bulk" else "application/json"
        async with self._session.post(f"{self._url}/{api}", data=body, headers={"content-type": kind}) as response:
            answer: dict[str, Any] = orjson.loads(await response.read())
            return answer


async def _watch(pid: int, report: Report, seconds: float) -> None:
    """Take the memory of the gateway every so often, and show that time goes on."""
    process = psutil.Process(pid)
    started = time.perf_counter()
    with progress_bar() as progress:
        task = progress.add_task("soaking", total=SAMPLES)
        while True:
            report.memory.append((time.perf_counter() - started, process.memory_info().rss / 2**20))
            progress.advance(task)
            await asyncio.sleep(seconds / SAMPLES)


def draw(report: Report) -> None:
    """Draw the gateway's memory over time."""
    with figure(7.2, 2.6) as drawn:
        axes = drawn.subplots()
        axes.plot(*zip(*report.memory, strict=True), color=STRONG, linewidth=1.6)
        axes.set_ylim(0, 1.25 * max(size for _, size in report.memory))
        axes.set_xlim(0)
        axes.set_title("the gateway's memory, MiB", loc="left", fontsize=11, color=INK)
        axes.set_xlabel("seconds", color=MUTED)
        axes.grid(axis="y", color=BAR, linewidth=0.4)
        save(drawn, "soak.svg")


if __name__ == "__main__":
    main()

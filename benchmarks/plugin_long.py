"""Many clients for a long time through the plugin: heap, threads, connections and refusals of the node over time.

Part of :mod:`benchmarks.plugin`. The gateway's memory of features is smaller than what is searched, so blobs are read
from shards and sent all the time: that is what costs a node heap. Documents are written through the ingest processor
meanwhile.
"""

import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson
import psutil

from benchmarks.common import heading, table
from benchmarks.figures import BAR, INK, MUTED, STRONG, figure, save
from benchmarks.served import GROUPS, QUERY, TOKENS, WINDOW, Client, Gateway, query

CACHE_MB = 64
"""Less than the 12 windows of about 10 MB that are searched."""
MIX = {"rescorer": 8, "all shards": 4, "documents": 1}
SEARCH_PIPELINE = "ttc-long"
INGEST_PIPELINE = "ttc-long"
WRITTEN = "benchmark-plugin-written"
DOCUMENTS = 4
SAMPLES = 120
FLAT = 1.10
"""How much greater the heap after collection may be in the last quarter than in the second."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the node.

    Attributes:
        second: Since the load began.
        heap: MiB that the last collections left in use.
        threads: Of the Java machine.
        clients: Connections that the node's HTTP server holds open.
        sidecar: Connections that the gateway holds open.
        rejected: Searches and windows that found no room, since the node started.
    """

    second: float
    heap: float
    threads: int
    clients: int
    sidecar: int
    rejected: int


@dataclass
class Seen:
    """What happened.

    Attributes:
        times: Milliseconds of every answer, by kind.
        errors: What was not as it should be.
        first_pass: Searches that kept their first pass, by reason.
        samples: Looks at the node.
    """

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    first_pass: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    samples: list[Sample] = field(default_factory=list)


def run(engine: str, gateway: Gateway, index: str, *, clients: int, seconds: float) -> None:
    """Send traffic for so many seconds, print the table, draw the series; exits where the node was not steady."""
    with Client(engine) as client:
        _prepare(client)
        before = _counted(client)
    seen = asyncio.run(_load(engine, gateway, index, clients, seconds))
    with Client(engine) as client:
        after = _counted(client)
    growth = _report(seen, {name: after[name] - before[name] for name in ("windows", "applied", "documents_encoded")})
    _draw(seen.samples)
    for error in seen.errors[:5]:
        print(error, file=sys.stderr)
    if seen.errors or growth > FLAT:
        sys.exit(1)


def _prepare(client: Client) -> None:
    client.put(
        f"/_search/pipeline/{SEARCH_PIPELINE}",
        {
            "request_processors": [{"ttc_window": {"window_size": WINDOW}}],
            "response_processors": [{"ttc_rescore": {"method": "spectral", "query_text": QUERY}}],
        },
    )
    client.put(f"/_ingest/pipeline/{INGEST_PIPELINE}", {"processors": [{"ttc": {"wait": True, "on_error": "fail"}}]})


def _counted(client: Client) -> dict[str, int]:
    counted: dict[str, int] = client.get("/_plugins/_ttc/stats")["ttc"]
    return counted


async def _load(engine: str, gateway: Gateway, index: str, clients: int, seconds: float) -> Seen:
    seen = Seen()
    end = time.perf_counter() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=clients)) as session:
        traffic = _Traffic(session, engine, index, seen)
        watching = asyncio.create_task(_watch(engine, gateway, seen, seconds))
        await asyncio.gather(*(traffic.client(Random(number), end) for number in range(clients)))
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return seen


class _Traffic:
    """What clients do: each draws one thing after the other."""

    def __init__(self, session: aiohttp.ClientSession, url: str, index: str, seen: Seen) -> None:
        self._session = session
        self._url = url
        self._index = index
        self._seen = seen
        self._acts: dict[str, Callable[[Random], Awaitable[str | None]]] = {
            "rescorer": self._rescorer,
            "all shards": self._all_shards,
            "documents": self._documents,
        }

    async def client(self, random: Random, end: float) -> None:
        while (started := time.perf_counter()) < end:
            [kind] = random.choices(list(MIX), weights=list(MIX.values()))
            error = await self._acts[kind](random)
            self._seen.times[kind].append((time.perf_counter() - started) * 1000)
            if error is not None:
                self._seen.errors.append(f"{kind}: {error}")

    async def _rescorer(self, random: Random) -> str | None:
        applied, answer = await self._post(f"{self._index}/_search", query(random.randrange(GROUPS), rescore=True))
        return self._judged(applied == "true", applied.rpartition("=")[2], answer)

    async def _all_shards(self, random: Random) -> str | None:
        path = f"{self._index}/_search?search_pipeline={SEARCH_PIPELINE}"
        _, answer = await self._post(path, query(random.randrange(GROUPS), rescore=False))
        ours = answer.get("ext", {}).get("ttc", {})
        return self._judged(ours.get("applied"), ours.get("reason"), answer)

    def _judged(self, applied: bool | None, reason: str | None, answer: dict[str, Any]) -> str | None:
        if len(answer.get("hits", {}).get("hits", ())) != 10 or not (applied or reason):
            return f"{answer!r:.300}"
        if not applied:
            self._seen.first_pass[str(reason)] += 1
        return None

    async def _documents(self, random: Random) -> str | None:
        lines: list[dict[str, Any]] = []
        for _ in range(DOCUMENTS):
            lines += [{"index": {}}, {"text": " ".join(f"word{random.randrange(500)}" for _ in range(20))}]
        path = f"{WRITTEN}/_bulk?pipeline={INGEST_PIPELINE}"
        _, answer = await self._post(path, b"".join(orjson.dumps(line) + b"\n" for line in lines))
        return None if answer.get("errors") is False else f"{answer!r:.300}"

    async def _post(self, path: str, body: bytes) -> tuple[str, dict[str, Any]]:
        kind = "application/x-ndjson" if "_bulk" in path else "application/json"
        async with self._session.post(f"{self._url}/{path}", data=body, headers={"content-type": kind}) as response:
            return response.headers.get("x-ttc-applied", ""), orjson.loads(await response.read())


async def _watch(engine: str, gateway: Gateway, seen: Seen, seconds: float) -> None:
    process, started = psutil.Process(gateway.pid), time.perf_counter()
    port = int(gateway.url.rpartition(":")[2])
    while True:
        seen.samples.append(await asyncio.to_thread(_sample, engine, process, port, started))
        await asyncio.sleep(seconds / SAMPLES)


def _sample(engine: str, process: psutil.Process, port: int, started: float) -> Sample:
    with Client(engine) as client:
        [node] = client.get("/_nodes/stats/jvm,thread_pool,http")["nodes"].values()
    pools = node["jvm"]["mem"]["pools"].values()
    held = [one for one in process.net_connections("tcp") if one.laddr.port == port and one.status == "ESTABLISHED"]
    return Sample(
        second=time.perf_counter() - started,
        heap=sum(pool["last_gc_stats"]["used_in_bytes"] for pool in pools) / 2**20,
        threads=node["jvm"]["threads"]["count"],
        clients=node["http"]["current_open"],
        sidecar=len(held),
        rejected=sum(node["thread_pool"][pool]["rejected"] for pool in ("search", "write", "ttc")),
    )


def _report(seen: Seen, counted: dict[str, int]) -> float:
    """Print what was seen; return the heap's median in the last quarter against the second."""
    samples = seen.samples
    quarter = len(samples) // 4
    parts = [samples[number * quarter : (number + 1) * quarter] for number in range(4)]
    data = (
        f"{GROUPS} x {WINDOW} documents of {TOKENS} tokens x 384, int8, one shard, OpenSearch 3.5.0, "
        f"{CACHE_MB} MiB of features in the gateway"
    )
    print(heading("Plugin, a long run", data=data, packages=("uvicorn", "starlette", "cbor2", "numpy")))
    rows = [
        (kind, f"{len(times):,}", f"{statistics.median(times):.0f}", f"{max(times):.0f}")
        for kind, times in seen.times.items()
    ]
    print(table(("requests", "answered", "p50 ms", "longest ms"), rows))
    quarters = [
        (
            number + 1,
            f"{statistics.median(one.heap for one in part):.0f}",
            f"{max(one.heap for one in part):.0f}",
            _range([one.threads for one in part]),
            _range([one.clients for one in part]),
            _range([one.sidecar for one in part]),
            part[-1].rejected - samples[0].rejected,
        )
        for number, part in enumerate(parts)
    ]
    columns = ("quarter", "heap after collection MiB", "most", "threads", "clients", "to the sidecar", "rejected")
    print(table(columns, quarters))
    growth = statistics.median(one.heap for one in parts[3]) / statistics.median(one.heap for one in parts[1])
    print(f"Errors: {len(seen.errors)}; first pass kept: {dict(seen.first_pass) or 'never'}.")
    print(
        f"{counted['windows']:,} windows, {counted['applied']:,} rescored; {counted['documents_encoded']:,} documents "
        f"encoded. Heap, last quarter against the second: {growth:.3f}.\n"
    )
    return growth


def _range(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}"


def _draw(samples: Sequence[Sample]) -> None:
    """Draw heap above, threads and connections below, over time."""
    seconds = [one.second for one in samples]
    with figure(7.2, 3.8) as drawn:
        above, below = drawn.subplots(2, 1, sharex=True)
        above.plot(seconds, [one.heap for one in samples], color=STRONG, linewidth=1.6)
        above.set_title("heap after collection, MiB", loc="left", fontsize=11, color=INK)
        above.set_ylim(0, 1.25 * max(one.heap for one in samples))
        for values, name, style in (
            ([one.threads for one in samples], "threads", "-"),
            ([one.clients for one in samples], "clients' connections", "--"),
            ([one.sidecar for one in samples], "connections to the sidecar", ":"),
        ):
            below.plot(seconds, values, style, color=INK if name == "threads" else STRONG, linewidth=1.4, label=name)
        below.set_ylim(0, 1.35 * max(one.threads for one in samples))
        below.set_xlim(0, max(seconds))
        below.set_xlabel("seconds", color=MUTED)
        below.legend(loc="upper right", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
        for axes in (above, below):
            axes.grid(axis="y", color=BAR, linewidth=0.4)
        save(drawn, "plugin_long.svg")

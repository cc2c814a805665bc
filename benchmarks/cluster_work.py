"""Work that goes on in the background while a cluster's nodes are killed: ingest, attach, graphs, encoding, enrichment.

Each kind repeats itself until it is told to end, counts what it has done, and looks at every document afterwards.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from benchmarks.served import ENCODER
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.record import JobStatus
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.errors import EsTtcError
from es_ttc.index.mappings.attached import side_alias
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.graph import NEIGHBOURS, graph_alias
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import HASH, IndexSpec
from tests.serving.client import Reply, call
from tests.support.jobs import IDENTITY, Workplace, census, connected, fill

DOCUMENTS = 60
"""Documents of each run; they are encoded anew every time."""
RETRY_SECONDS = 120
LONGEST_SECONDS = 300
PAUSE_SECONDS = 5
TWO_COPIES = IndexOptions(shards=3, replicas=1)


@dataclass
class Work:
    """What one kind of work came to.

    Attributes:
        name: Its name.
        runs: Runs that ended well.
        documents: Documents that were looked at, and were as they must be.
        refused: Runs that ended with an error of their own, which said so; each is run again.
        faults: What was lost, doubled or wrong.
    """

    name: str
    runs: int = 0
    documents: int = 0
    refused: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Place:
    """The cluster, and documents.

    Args:
        engine: The addresses of all nodes.
        gateways: The addresses of the gateways.
        jobs: Where jobs are done.
        texts: Texts of documents.
    """

    def __init__(self, engine: str, gateways: Sequence[str], jobs: Workplace, texts: Sequence[str]) -> None:
        self.engine = engine
        self.nodes = engine.split(",")
        self.gateways = gateways
        self.jobs = jobs
        self.folder = jobs.folder
        self.file = self.folder / "documents.jsonl"
        self.sources = [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)]
        self.file.write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in self.sources))

    async def es_ttc(self, *arguments: str) -> str | None:
        """Run a command, and return why it failed; None where it succeeded."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "es_ttc", *arguments),
            cwd=self.folder,
            env={**os.environ, **self.jobs.environment, "ES_TTC_ENCODER": ENCODER},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        return None if process.returncode == 0 else f"{' '.join(arguments)}: {errors.decode()[-400:]}"

    async def direct(self, method: str, target: str, body: Any = None) -> Reply:
        """Send a request to whichever node answers it; writes here may be repeated."""
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            for node in self.nodes:
                try:
                    reply = await asyncio.to_thread(call, node, method, target, body)
                except OSError:
                    continue
                if reply.status < 429 and not (reply.status == 200 and _partial(reply)):
                    return reply
            assert time.monotonic() < deadline, f"{method} {target} is not answered"
            await asyncio.sleep(0.5)

    async def count(self, index: str, query: Any = None) -> int:
        """Return the number of an index's documents."""
        await self.direct("POST", f"/{index}/_refresh")
        body = {"size": 0, "track_total_hits": True, **({"query": query} if query else {})}
        found: int = (await self.direct("POST", f"/{index}/_search", body)).json()["hits"]["total"]["value"]
        return found


def _partial(reply: Reply) -> bool:
    try:
        answer = reply.json()
    except ValueError:
        return False
    return isinstance(answer, dict) and bool(answer.get("_shards", {}).get("failed") or answer.get("timed_out"))


ENCODED = {"exists": {"field": HASH}}


async def repeated(work: Work, once: Callable[[int], Awaitable[None]], ends: asyncio.Event) -> None:
    """Run work again and again."""
    number = 0
    while not ends.is_set():
        number += 1
        try:
            await once(number)
        except EsTtcError as error:
            work.refused.append(f"{type(error).__name__}: {error}")
        except (AssertionError, OSError) as error:
            work.faults.append(f"{type(error).__name__}: {error}")
        else:
            work.runs += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def succeed(place: Place, work: Work, *arguments: str) -> None:
    """Run a command again until it succeeds."""
    deadline = time.monotonic() + RETRY_SECONDS
    while (refused := await place.es_ttc(*arguments)) is not None:
        work.refused.append(refused)
        assert time.monotonic() < deadline, refused
        await asyncio.sleep(2)


async def ingest(place: Place, work: Work, ends: asyncio.Event) -> None:
    """Create an index, ingest documents, count them, delete it."""

    async def once(number: int) -> None:
        index = f"chaos-ingest-{number}"
        await succeed(
            place, work, "index", "create", index, "--shards", "3", "--replicas", "1", "--text-fields", "text"
        )
        await succeed(place, work, "ingest", index, place.file.name, "--resume", "--retry-seconds", "60")
        encoded = await place.count(index, ENCODED)
        assert encoded == len(place.sources), f"{encoded} of {len(place.sources)} documents in {index}"
        work.documents += encoded
        await place.direct("DELETE", f"/{index}")

    await repeated(work, once, ends)


async def attach(place: Place, work: Work, ends: asyncio.Event) -> None:
    """Attach features to an index that has none, count them, detach it."""
    index = "chaos-attach"
    await write_plain(place, index)

    async def once(_: int) -> None:
        await succeed(place, work, "attach", index, "--text-fields", "text")
        encoded = await place.count(side_alias(index), ENCODED)
        assert encoded == len(place.sources), f"{encoded} of {len(place.sources)} documents attached to {index}"
        work.documents += encoded
        await succeed(place, work, "detach", index, "--yes")

    await repeated(work, once, ends)


async def graphs(place: Place, work: Work, ends: asyncio.Event) -> None:
    """Build the graph of an index again and again, and count its nodes."""
    index, documents = "chaos-graph", len(place.sources)
    await succeed(place, work, "index", "create", index, "--shards", "3", "--replicas", "1", "--text-fields", "text")
    await succeed(place, work, "ingest", index, place.file.name, "--resume", "--retry-seconds", "60")

    async def once(_: int) -> None:
        await succeed(place, work, "graph", "build", index)
        nodes = await place.count(graph_alias(index), {"exists": {"field": NEIGHBOURS}})
        assert nodes == documents, f"{nodes} of {documents} documents have neighbours"
        work.documents += nodes

    await repeated(work, once, ends)


async def write_plain(place: Place, index: str) -> None:
    """Write documents without features."""
    await place.direct("PUT", f"/{index}", {"settings": {"number_of_shards": 3, "number_of_replicas": 1}})
    for one in place.sources:
        body = {"text": one["text"]}
        await place.direct("PUT", f"/{index}/_doc/{one['_id']}", body)
    await place.direct("POST", f"/{index}/_refresh")


async def encoding(place: Place, work: Work, ends: asyncio.Event) -> None:
    """Write documents through the gateways to a followed index; a worker encodes each."""
    index = "chaos-followed"
    await succeed(place, work, "index", "create", index, "--shards", "3", "--replicas", "1", "--text-fields", "text")
    await succeed(place, work, "index", "pipeline", index, "--encode", "later")
    written = 0

    async def once(number: int) -> None:
        nonlocal written
        for one in place.sources[:10]:
            await through(place.gateways, f"/{index}/_doc/{number}-{one['_id']}", {"text": f"{one['text']} {number}"})
            written += 1
        await asyncio.sleep(2)

    await repeated(work, once, ends)
    encoded = 0
    for _ in range(LONGEST_SECONDS):
        encoded = await place.count(index, ENCODED)
        if encoded >= written:
            break
        await asyncio.sleep(1)
    work.documents = encoded
    if (kept := await place.count(index)) != written or encoded != written:
        work.faults.append(f"encoding: {written} documents written, {kept} kept, {encoded} encoded")


async def through(gateways: Sequence[str], target: str, body: Any) -> None:
    """Write a document through whichever gateway takes it, again until it is taken."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        for gateway in gateways:
            reply = await asyncio.to_thread(call, gateway, "PUT", target, body)
            if reply.status in (200, 201):
                return
        assert time.monotonic() < deadline, reply.body
        await asyncio.sleep(0.5)


async def enrichment(place: Place, work: Work, ends: asyncio.Event) -> None:
    """Enrich all documents of an index by a job, and look at each; then the next one."""
    settings = place.jobs.settings

    async def once(number: int) -> None:
        index = f"chaos-enriched-{number}"
        async with connected_to(place) as engine:
            await create_index(engine, index, IndexSpec(IDENTITY, tokens="none"), TWO_COPIES)
            await add_enrichment(engine, index)
            await fill(engine, index, range(DOCUMENTS))
        async with connected_to(place) as engine:
            job = (await submission.submit(engine, settings, JobRequest(index=index, tau=0.5, lanes=4))).job.id
        shown = await over(place, job)
        assert (shown.state, shown.progress.done) == ("completed", DOCUMENTS), f"{shown.state}, {shown.progress}"
        async with connected_to(place) as engine:
            counted = await census(engine, place.jobs, job, index)
        assert (counted.once, counted.doubled) == (DOCUMENTS, 0), f"{counted}"
        work.documents += counted.once
        await place.direct("DELETE", f"/{index}")

    await repeated(work, once, ends)


async def over(place: Place, job: str) -> JobStatus[Any]:
    """Return a job's status at its end."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        await asyncio.sleep(1)
        with suppress(EsTtcError):  # nodes come and go
            async with connected_to(place) as engine:
                shown = await commands.shown(engine, place.jobs.settings, job)
                if shown.job.status != "running":
                    return shown
        assert time.monotonic() < deadline, f"job {job} does not end"


@asynccontextmanager
async def connected_to(place: Place) -> AsyncIterator[Engine]:
    """Connect to all nodes."""
    engine = await connected(place.engine)
    try:
        yield engine
    finally:
        await engine.close()

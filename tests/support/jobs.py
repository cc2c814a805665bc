"""Real workers on a real Redis, and an endpoint with faults in a process of its own, for what is tested of jobs."""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from es_ttc.encoders.base import EncoderIdentity
from es_ttc.engine.connect import connect
from es_ttc.engine.protocol import Engine
from es_ttc.errors import EngineUnavailable
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import ENRICHED, ENRICHED_BY, ENRICHMENT, IndexSpec
from es_ttc.settings import EngineSettings, Settings

IDENTITY = EncoderIdentity("test", "1", 4, 16, "", "")
_SLOW_SECONDS = 0.8


@dataclass
class JobSetup:
    """The names, addresses and files that all processes of a test of jobs share.

    Attributes:
        engine: The engine's URL.
        index: The index whose documents are enriched; records stand in indices with its name as a prefix.
        model: The endpoint's URL.
        folder: For logs.
        redis: Address of a Redis; None lets each worker run its own.
        more: Further settings of workers.
        python: Runs workers.
    """

    engine: str
    index: str
    model: str
    folder: Path
    redis: str | None = None
    api: str = "completions"
    more: dict[str, str] = field(default_factory=dict)
    python: str = sys.executable

    @property
    def environment(self) -> dict[str, str]:
        """What a worker and the commands are told."""
        told = {
            "ES_TTC_ENGINE": self.engine,
            "ES_TTC_JOBS_INDEX": f"{self.index}-jobs",
            "ES_TTC_LLM_URL": self.model,
            "ES_TTC_LLM_API": self.api,
            "ES_TTC_LLM_TIMEOUT": "2",
            "ES_TTC_LLM_ATTEMPTS": "1",
            "ES_TTC_JOBS_TURN_SECONDS": "3",
            **({"ES_TTC_REDIS": self.redis} if self.redis else {}),
        }
        return told | self.more

    @property
    def settings(self) -> Settings:
        """The same, for calls in this process."""
        names = {name.removeprefix("ES_TTC_").lower(): value for name, value in self.environment.items()}
        return Settings(**names)  # type: ignore[arg-type]


class Worker:
    """An `es-ttc worker` in a process of its own."""

    def __init__(self, job_setup: JobSetup, processes: int = 2, *, only: str | None = None) -> None:
        self._log = (job_setup.folder / f"worker-{time.monotonic_ns()}.log").open("wb")
        command = [job_setup.python, "-m", "es_ttc", "--debug", "worker", "--processes", str(processes)]
        command += ["--only", only] if only else []
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **job_setup.environment},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.log = Path(self._log.name)

    def kill(self) -> None:
        """Kill it and all its processes without warning."""
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for member in family:
            with_suppress(member.kill)
        self.process.wait(20)
        self._log.close()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End it politely; the exit status."""
        self.process.send_signal(by)
        try:
            status = self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.kill()
        self._log.close()
        return status


def with_suppress(call: Any) -> None:
    """Call, and let a process that has gone be gone."""
    try:
        call()
    except psutil.NoSuchProcess:
        return


@contextmanager
def worker_at(job_setup: JobSetup, processes: int = 2) -> Iterator[Worker]:
    """Run a worker for the time of a block."""
    worker = Worker(job_setup, processes)
    try:
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.stop()


@contextmanager
def model_process(folder: Path, *, seconds: float = 0.02) -> Iterator[tuple[str, Path, Path]]:
    """Run the endpoint with faults; give its URL, the file that says which fault it has, and that of its questions."""
    fault, asked = folder / "fault", folder / "asked"
    fault.write_text("none")
    asked.write_text("")
    command = [sys.executable, "-m", "tests.support.jobs", str(fault), str(asked), "--seconds", str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), fault, asked
    finally:
        process.kill()
        process.communicate()


def document(number: int) -> dict[str, Any]:
    """A short document that no other one is like."""
    return {"title": f"Report {number}", "text": f"Observation number{number} of the river station{number % 7}."}


async def fill(engine: Engine, index: str, numbers: Sequence[int]) -> None:
    """Write documents."""
    lines = []
    for number in numbers:
        lines += [json.dumps({"index": {"_id": f"d{number}"}}).encode(), json.dumps(document(number)).encode()]
        if len(lines) >= 10_000:
            await engine.bulk(index, lines)
            lines = []
    if lines:
        await engine.bulk(index, lines)
    await engine.refresh(index)


async def make_index(engine: Engine, index: str, count: int) -> None:
    """Make an index that can be enriched, with so many documents."""
    await create_index(engine, index, IndexSpec(IDENTITY, tokens="none"), IndexOptions(shards=1, replicas=0))
    await add_enrichment(engine, index)
    await fill(engine, index, range(count))


async def connected(url: str) -> Engine:
    """Connect, also to an engine that is just coming back."""
    for _ in range(120):
        try:
            return await connect(EngineSettings(engine=url))
        except EngineUnavailable:
            await asyncio.sleep(0.5)
    raise AssertionError(f"{url} does not come back")


@dataclass(frozen=True)
class Census:
    """What stands in the index, counted one document after the other.

    Attributes:
        documents: All documents.
        enriched: Those that carry enrichment.
        once: Those whose phrases are exactly the ones that the model gives for them.
        by: Jobs that wrote them.
        notes: Notes of the job about documents that are done.
        doubled: Notes beyond one a document.
    """

    documents: int
    enriched: int
    once: int
    by: set[str]
    notes: int
    doubled: int


async def census(engine: Engine, job_setup: JobSetup, job: str, index: str = "") -> Census:
    """Count in the index of the set-up, or in another one whose job has its records beside it."""
    await engine.refresh(index or job_setup.index)
    body = {"size": 10_000, "_source": False, "stored_fields": [ENRICHMENT], "docvalue_fields": [ENRICHED, ENRICHED_BY]}
    hits = (await engine.search(index or job_setup.index, body))["hits"]["hits"]
    found = {hit["_id"]: hit.get("fields", {}) for hit in hits}
    enriched = {name: fields for name, fields in found.items() if ENRICHED in fields}
    once = sum(sorted(fields.get(ENRICHMENT, [])) == expected(int(name[1:])) for name, fields in enriched.items())
    outcomes = f"{job_setup.index}-jobs-outcomes"
    await engine.refresh(outcomes)
    query = {"bool": {"filter": [{"term": {"job": job}}, {"term": {"outcome": "done"}}]}}
    notes = (await engine.search(outcomes, {"size": 10_000, "query": query, "_source": ["document"]}))["hits"]["hits"]
    names = [note["_source"]["document"] for note in notes]
    by = {fields[ENRICHED_BY][0] for fields in enriched.values()}
    return Census(len(found), len(enriched), once, by, len(notes), len(names) - len(set(names)))


def expected(number: int) -> list[str]:
    """The phrases that the endpoint gives for a document and the filters keep."""
    return sorted([f"flood gauge{number}", f"hydrology{number}"])


def serve(fault: Path, asked: Path, seconds: float) -> None:
    """Serve the endpoint; every question is one line in a file."""
    from aiohttp import web

    from tests.support.llm import reply
    from tests.support.servers import server_of

    rng = random.Random(1)

    def now_at_fault() -> str:
        return fault.read_text().strip()

    async def ask(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            if now_at_fault() in ("429", "500"):
                return web.json_response({}, status=500)
            return web.json_response({"object": "list", "data": [{"id": "scripted"}]})
        body = await request.json()
        chat = "messages" in body
        question = body["messages"][0]["content"] if chat else body["prompt"]
        numbers = re.findall(r"Observation number(\d+)", question)
        with asked.open("a") as file:
            file.write(f"{numbers[-1] if numbers else '?'}\n")
        await asyncio.sleep(seconds * rng.uniform(0.5, 1.5))
        match now_at_fault():
            case "garbage":
                return web.json_response(reply("%%% ... ### ---", chat=chat))
            case "slow":
                await asyncio.sleep(_SLOW_SECONDS)
            case "hang":
                await asyncio.sleep(3600)
            case "429" | "500" as status:
                return web.json_response({"error": {"message": "scripted"}}, status=int(status))
        number = numbers[-1] if numbers else "0"
        # Two phrases that are new, one that is in the document, one of which the analyzer leaves nothing.
        return web.json_response(reply(f"flood gauge{number}, hydrology{number}, river, the", chat=chat))

    async def main() -> None:
        async with server_of(ask) as url:
            sys.stdout.write(f"{url}/v1\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    asyncio.run(main())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", type=Path)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--seconds", type=float, default=0.02)
    arguments = parser.parse_args()
    serve(arguments.fault, arguments.asked, arguments.seconds)

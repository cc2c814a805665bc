"""Real `es-ttc worker` processes on a real Redis."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from es_ttc.cli import doctor as checks
from es_ttc.cli.app import run
from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.following import follow
from es_ttc.enrichment.jobs.record import JobStatus
from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.errors import EsTtcError
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from tests.support.jobs import JobSetup, Worker, census, connected, fill, make_index, model_process, worker_at
from tests.support.own_node import OwnNode

ON_ONE_ENGINE = True

EVERYTHING = 60


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `es-ttc jobs` and returns what it prints: decoded with --json, else as text."""

    def command(job_setup: JobSetup, *arguments: str, status: int = 0) -> Any:
        for name, value in job_setup.environment.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        assert run(["jobs", *arguments]) == status, capfd.readouterr().err
        printed = capfd.readouterr()
        if status:
            return printed.err
        return json.loads(printed.out) if "--json" in arguments else printed.out

    return command


async def test_commands_and_two_workers_on_one_redis(
    engine: Engine, engine_url: str, index_name: str, tmp_path: Path, told: Callable[..., Any]
) -> None:
    """Submitted, paused, resumed and watched as a person does it; a job of higher priority and a continuous one."""
    await make_index(engine, index_name, 60)
    with model_process(tmp_path) as (model, _, asked), EmbeddedRedis() as redis:
        more = {"ES_TTC_LLM_REQUESTS_PER_MINUTE": "10000"}
        job_setup = JobSetup(engine_url, index_name, model, tmp_path, redis=redis.url, more=more)

        async def jobs(*arguments: str, status: int = 0) -> Any:
            return await asyncio.to_thread(told, job_setup, *arguments, status=status)

        submitted = await jobs("submit", index_name, "--tau", "0.5", "--json")
        assert submitted["state"] == "running"
        store = JobStore(engine, job_setup.settings.jobs_index)
        assert await store.leases.unattended() == "no worker has been seen: `es-ttc worker` does the work"
        assert [check.detail for check in await checks.workers(job_setup.settings)] == [
            "jobs are running (1), and no worker has been seen: `es-ttc worker` does the work"
        ]
        with worker_at(job_setup) as first, worker_at(job_setup) as second:
            watched = await jobs("watch", submitted["id"])
            assert "completed" in watched
            assert "60 of 60, 120 phrases written" in watched
            assert await store.leases.unattended() == ""
            counted = await census(engine, job_setup, submitted["id"])
            assert (counted.once, counted.notes, counted.doubled) == (60, 60, 0)
            assert sorted(asked.read_text().split()) == sorted(map(str, range(60)))
            job = (await jobs("submit", index_name, "--continuous", "--tau", "0.5", "--json"))["id"]
            await fill(engine, index_name, range(60, 65))
            deadline = time.monotonic() + 60
            while (await commands.shown_job(engine, job_setup.settings, job)).progress.done < 5:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.3)
            assert (await jobs("pause", job, "--json"))["state"] == "paused"
            assert (await jobs("resume", job, "--json"))["state"] in ("idle", "running")
            assert (await jobs("cancel", job, "--json"))["state"] == "cancelled"
            assert [first.stop(signal.SIGINT), second.stop()] == [0, 0], first.log.read_text()[-3000:]
        listed = await jobs("list", "--json")
        assert [(each["id"], each["state"]) for each in listed["jobs"]] == [
            (job, "cancelled"),
            (submitted["id"], "completed"),
        ]
        assert submitted["id"] in await jobs("list")
        wrong = await jobs("show", "enrich-none", status=1)
        assert wrong == "es-ttc: there is no job [enrich-none]: see `es-ttc jobs list`\n"
        wrong = await jobs("submit", index_name, "--tau", "2", status=1)
        assert wrong.startswith("es-ttc: [tau] must lie between 0 and 1")
        tried = await jobs("submit", index_name, "--redo", "--tau", "0.9", "--dry-run", "--sample", "2")
        assert "no document was written. The whole: 65 documents" in tried


async def test_job_with_processes_killed_enriches_every_document_once(
    own_node: OwnNode, index_name: str, tmp_path: Path
) -> None:
    """Every document enriched exactly once and counted, whatever was killed and whatever the model suffered from."""
    engine = await connected(own_node.url)
    await make_index(engine, index_name, EVERYTHING)
    with model_process(tmp_path) as (model, fault, _):
        job_setup = JobSetup(own_node.url, index_name, model, tmp_path)
        job = (
            await submission.submit_job(engine, job_setup.settings, JobRequest(index=index_name, tau=0.5, lanes=4))
        ).job.id
        await engine.close()
        await asyncio.to_thread(fault.write_text, "slow")  # or all is done before the last of them
        worker = await asyncio.to_thread(Worker, job_setup)
        try:
            for event in ("kill", "redis", "engine", "500"):
                await at_work(job_setup, job, worker)
                match event:
                    case "kill":
                        await asyncio.to_thread(worker.kill)
                        worker = await asyncio.to_thread(Worker, job_setup)
                    case "redis":
                        kill_redis(worker)
                    case "engine":
                        await asyncio.to_thread(own_node.kill)
                        await asyncio.to_thread(own_node.restart)
                    case _:
                        await asyncio.to_thread(fault.write_text, event)
                        await asyncio.sleep(1)
                        await asyncio.to_thread(fault.write_text, "slow")
            await asyncio.to_thread(fault.write_text, "none")
            while (shown := await look(job_setup, job)) is None or shown.job.status == "running":
                assert worker.process.poll() is None, worker.log.read_text()[-3000:]
                await asyncio.sleep(0.3)
            assert await asyncio.to_thread(worker.stop) == 0
        finally:
            if worker.process.poll() is None:
                worker.kill()
        engine = await connected(job_setup.engine)
        counted = await census(engine, job_setup, job)
        await engine.close()
    assert shown.state == "completed", shown.job.reason
    expected = (*[EVERYTHING] * 4, 0)
    assert (counted.documents, counted.enriched, counted.once, counted.notes, counted.doubled) == expected
    progress = shown.progress
    assert (progress.done, progress.failed, progress.pending, progress.deferred) == (EVERYTHING, 0, 0, 0)


async def at_work(job_setup: JobSetup, job: str, worker: Worker) -> None:
    """Wait until the worker has done something since now, and something is left: else what is killed proves nothing."""
    before, deadline = None, time.monotonic() + 120
    while True:
        assert worker.process.poll() is None, worker.log.read_text()[-2000:]
        assert time.monotonic() < deadline, worker.log.read_text()[-3000:]
        if (shown := await look(job_setup, job)) is not None:
            assert shown.job.status == "running"
            before = shown.progress.done if before is None else before
            if shown.progress.done > before:
                return
        await asyncio.sleep(0.2)


async def look(job_setup: JobSetup, job: str) -> JobStatus[Any] | None:
    engine = await connected(job_setup.engine)
    try:
        return await commands.shown_job(engine, job_setup.settings, job)
    except EsTtcError:
        return None  # the engine has just come back, its shards have not
    finally:
        await engine.close()


def kill_redis(worker: Worker) -> None:
    """Kill the worker's own Redis; it is started again, empty."""
    [server] = [one for one in psutil.Process(worker.process.pid).children(recursive=True) if "-server" in one.name()]
    server.kill()


async def test_more_documents_than_a_search_returns_are_counted(
    engine: Engine, engine_url: str, index_name: str, tmp_path: Path
) -> None:
    await make_index(engine, index_name, 10_500)
    with model_process(tmp_path) as (model, _, __):
        settings = JobSetup(engine_url, index_name, model, tmp_path).settings
        submitted = await submission.submit_job(engine, settings, JobRequest(index=index_name))
        [shown] = await commands.listed(engine, settings)
    assert (submitted.job.total, shown.progress.pending) == (10_500, 10_500)


async def test_followed_writes_with_processes_killed_are_encoded_once(
    own_node: OwnNode, index_name: str, encoder: Encoder, tmp_path: Path
) -> None:
    """The worker killed under way, then the engine while another starts."""
    engine = await connected(own_node.url)
    spec = IndexSpec(encoder.identity, max_tokens=64)
    await create_index(engine, index_name, spec, IndexOptions(shards=2, replicas=0))
    more = {"ES_TTC_ENCODER": "minilm@onnx"}
    job_setup = JobSetup(own_node.url, index_name, "http://127.0.0.1:9/v1", tmp_path, more=more)
    await follow(engine, job_setup.settings, index_name, "later")

    async def states() -> Counter[tuple[int, str]]:
        await engine.refresh(index_name)
        body = {"size": 1000, "version": True, "_source": False, "docvalue_fields": ["ttc.state"]}
        hits = (await engine.search(index_name, body))["hits"]["hits"]
        return Counter((hit["_version"], hit["fields"]["ttc.state"][0]) for hit in hits)

    async def until(done: Callable[[Counter[tuple[int, str]]], bool], worker: Worker) -> None:
        deadline = time.monotonic() + 120
        while not done(found := await states()):
            assert time.monotonic() < deadline, (found, worker.log.read_text()[-2000:])
            await asyncio.sleep(0.1)

    long = "A river station observes the flood. " * 20
    documents = [({"index": {"_id": f"d{n}"}}, {"title": f"Report {n}", "text": long}) for n in range(60)]
    await engine.bulk(index_name, [json.dumps(line).encode() for lines in documents for line in lines])
    worker = Worker(job_setup, only="encode")
    try:
        await until(lambda found: found[2, "ready"] >= 10, worker)
        await asyncio.to_thread(worker.kill)
        killed_at = (await states())[2, "ready"]
        worker = Worker(job_setup, only="encode")
        await until(lambda found: found[2, "ready"] > killed_at, worker)
        await engine.close()
        await asyncio.to_thread(own_node.kill)
        second = Worker(job_setup, only="encode")
        try:
            while "trying again for 60 s" not in second.log.read_text():
                assert second.process.poll() is None, second.log.read_text()
                await asyncio.sleep(0.1)
            await asyncio.to_thread(own_node.restart)
            engine = await connected(own_node.url)
            await until(lambda found: found[2, "ready"] == 60, worker)
            assert await states() == {(2, "ready"): 60}
            assert (worker.process.poll(), second.process.poll()) == (None, None)
        finally:
            await asyncio.to_thread(second.stop)
    finally:
        await asyncio.to_thread(worker.stop)
        await engine.close()

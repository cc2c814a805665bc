"""A job with everything that can go wrong going wrong: workers and Redis killed, the engine restarted, a sick model."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.record import JobStatus
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.errors import EsTtcError
from tests.support.jobs import Census, Worker, Workplace, census, connected, with_suppress

_MAX_SECONDS = 900


@dataclass(frozen=True)
class Survived:
    """What was left of it.

    Attributes:
        shown: The job at its end.
        census: What stands in the index.
        asked: How often the model was asked about each document.
        kills: Workers killed while they were at work.
        redis_kills: Redis servers killed, each of which came back empty.
        seconds: In all.
    """

    shown: JobStatus[Any]
    census: Census
    asked: Counter[str]
    kills: int
    redis_kills: int
    seconds: float


async def survive(
    place: Workplace,
    fault: Path,
    asked: Path,
    *,
    kills: int,
    redis_kills: int,
    faults: list[str],
    fault_seconds: float,
    span: float,
    restart: Callable[[], None] | None,
    rng: random.Random,
) -> Survived:
    """Submit a job over all documents and let it be done in spite of everything.

    Args:
        place: Where.
        fault: File that says what the model suffers from.
        asked: File with its questions.
        kills: Times that the worker is killed with all its processes and started again.
        redis_kills: Times that its Redis is killed.
        faults: Faults of the model, one after the other.
        fault_seconds: That each lasts.
        span: Seconds within which something happens.
        restart: Kills the engine and starts it again; None leaves it alone.
        rng: Chooses.
    """
    begun = time.monotonic()
    engine = await connected(place.engine)
    job = (await submission.submit(engine, place.settings, JobRequest(index=place.index, tau=0.5, lanes=4))).job.id
    worker = await asyncio.to_thread(Worker, place)
    done_kills = done_redis = 0
    events = ["kill"] * kills + ["redis"] * redis_kills + faults + (["engine"] if restart else [])
    rng.shuffle(events)
    await asyncio.to_thread(fault.write_text, "slow")  # or all is done before the last of them
    try:
        for event in events:
            if not await _at_work(place, job, worker):
                break  # all is done: whatever is killed now proves nothing
            await asyncio.sleep(rng.uniform(0.1, span))
            match event:
                case "kill":
                    await asyncio.to_thread(worker.kill)
                    done_kills += 1
                    worker = await asyncio.to_thread(Worker, place)
                case "redis":
                    done_redis += _kill_redis(worker)
                case "engine":
                    assert restart is not None
                    await asyncio.to_thread(restart)
                case _:
                    await asyncio.to_thread(fault.write_text, event)
                    await asyncio.sleep(fault_seconds)
                    await asyncio.to_thread(fault.write_text, "slow")
        await asyncio.to_thread(fault.write_text, "none")
        shown = await _over(place, job)
        assert await asyncio.to_thread(worker.stop) == 0
    finally:
        if worker.process.poll() is None:
            worker.kill()
        await engine.close()
    engine = await connected(place.engine)
    try:
        counted = await census(engine, place, job)
    finally:
        await engine.close()
    questions = Counter((await asyncio.to_thread(asked.read_text)).split())
    return Survived(shown, counted, questions, done_kills, done_redis, time.monotonic() - begun)


async def _at_work(place: Workplace, job: str, worker: Worker) -> bool:
    """Wait until the worker has done something since now; False where all is done."""
    before = None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert worker.process.poll() is None, worker.log.read_text()[-2000:]
        shown = await _look(place, job)
        if shown is not None:
            done = shown.progress.done
            if shown.job.status != "running":
                return False
            if before is not None and done > before:
                return True
            before = done if before is None else before
        await asyncio.sleep(0.2)
    raise AssertionError(f"no document was enriched for two minutes: {worker.log.read_text()[-3000:]}")


async def _over(place: Workplace, job: str) -> JobStatus[Any]:
    deadline = time.monotonic() + _MAX_SECONDS
    while time.monotonic() < deadline:
        shown = await _look(place, job)
        if shown is not None and shown.job.status != "running":
            return shown
        await asyncio.sleep(0.5)
    raise AssertionError(f"the job does not end: {await _look(place, job)}")


async def _look(place: Workplace, job: str) -> JobStatus[Any] | None:
    engine = await connected(place.engine)
    try:
        return await commands.shown(engine, place.settings, job)
    except EsTtcError:
        return None  # the engine has just come back, its shards have not
    finally:
        await engine.close()


def _kill_redis(worker: Worker) -> int:
    """Kill the worker's own Redis; it is started again, empty."""
    killed = 0
    for child in psutil.Process(worker.process.pid).children(recursive=True):
        if "redis-server" in child.name() or "valkey-server" in child.name():
            with_suppress(child.kill)
            killed += 1
    return killed

"""Real `es-ttc worker` processes on a real Redis."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from es_ttc.engine.protocol import Engine
from es_ttc.tasks import control
from es_ttc.tasks.control import Wanted
from es_ttc.tasks.redis_server import OwnRedis
from tests.support.chaos import survive
from tests.support.jobs import Workplace, census, connected, fill, make_index, model_process, worker_at
from tests.support.own_node import OwnNode

pytestmark = pytest.mark.parametrize("engine_url", ["opensearch"], indirect=True)


def command(place: Workplace, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "es_ttc", "jobs", *arguments],
        env={**os.environ, **place.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def told(place: Workplace, *arguments: str) -> Any:
    done = command(place, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_commands_and_two_workers_on_one_redis(
    engine: Engine, engine_url: str, index_name: str, tmp_path: Path
) -> None:
    """Submitted, paused, resumed and watched as a person does it; a job of higher priority and a continuous one."""
    await make_index(engine, index_name, 60)
    with model_process(tmp_path) as (model, _, asked), OwnRedis() as redis:
        more = {"ES_TTC_LLM_TOTAL_CONCURRENCY": "2", "ES_TTC_LLM_REQUESTS_PER_MINUTE": "10000"}
        place = Workplace(engine_url, index_name, model, tmp_path, redis=redis.url, more=more)
        run = asyncio.to_thread
        submitted = await run(told, place, "submit", index_name, "--tau", "0.5", "--lanes", "4")
        assert submitted["state"] == "running"
        with worker_at(place), worker_at(place):
            watched = await run(command, place, "watch", submitted["id"], "--every", "0.5")
            assert watched.returncode == 0, watched.stderr
            assert "completed" in watched.stdout
            assert "60 of 60, 120 phrases written" in watched.stdout
            counted = await census(engine, place, submitted["id"])
            assert (counted.once, counted.notes, counted.doubled) == (60, 60, 0)
            assert sorted(asked.read_text().split()) == sorted(map(str, range(60)))
            job = (await run(told, place, "submit", index_name, "--continuous", "--tau", "0.5"))["id"]
            await fill(engine, index_name, range(60, 65))
            deadline = time.monotonic() + 60
            while (await control.shown(engine, place.settings, job)).progress.done < 5:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.3)
            assert (await run(told, place, "pause", job))["state"] == "paused"
            assert (await run(told, place, "resume", job))["state"] in ("idle", "running")
            assert (await run(told, place, "cancel", job))["state"] == "cancelled"
        listed = await run(told, place, "list")
        assert [(each["id"], each["state"]) for each in listed["jobs"]] == [
            (job, "cancelled"),
            (submitted["id"], "completed"),
        ]
        wrong = await run(command, place, "show", "enrich-none")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr == "es-ttc: there is no job [enrich-none]: see `es-ttc jobs list`\n"


async def test_a_job_survives_everything(engine_url: str, index_name: str, tmp_path: Path) -> None:
    """Every document enriched exactly once and counted, whatever was killed: see benchmarks/jobs_chaos.py for more."""
    node = await asyncio.to_thread(OwnNode, "chaos")
    try:
        engine = await connected(node.url)
        await make_index(engine, index_name, 150)
        await engine.close()

        def restart() -> None:
            node.kill()
            node.restart()

        with model_process(tmp_path, seconds=0.1) as (model, fault, asked):
            place = Workplace(node.url, index_name, model, tmp_path)
            survived = await survive(
                place,
                fault,
                asked,
                kills=2,
                redis_kills=1,
                faults=["garbage", "500", "hang"],
                fault_seconds=2.0,
                span=1.0,
                restart=restart,
                rng=random.Random(7),
            )
    finally:
        await asyncio.to_thread(node.stop)
    counted, progress = survived.census, survived.shown.progress
    assert survived.shown.state == "completed", survived.shown.job.reason
    assert (counted.documents, counted.enriched, counted.once, counted.notes, counted.doubled) == (150,) * 4 + (0,)
    assert (progress.done, progress.failed, progress.pending, progress.deferred) == (150, 0, 0, 0)
    assert (survived.kills, survived.redis_kills) == (2, 1)


async def test_a_hundred_thousand_documents_are_counted_not_loaded(
    engine: Engine, engine_url: str, index_name: str, tmp_path: Path
) -> None:
    await make_index(engine, index_name, 100_000)
    with model_process(tmp_path) as (model, _, __):
        settings = Workplace(engine_url, index_name, model, tmp_path).settings
        begun = time.monotonic()
        submitted = await control.submit(engine, settings, Wanted(index=index_name))
        [shown] = await control.listed(engine, settings)
        seconds = time.monotonic() - begun
    assert (submitted.job.total, shown.progress.pending) == (100_000, 100_000)
    assert seconds < 20

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import leases
from es_ttc.enrichment.jobs.indices import VersionConflict
from es_ttc.enrichment.jobs.record import now
from es_ttc.enrichment.jobs.store import JobStore

FOLDERS = [*Path("/usr/lib").glob("*/faketime"), Path("/usr/local/lib/faketime")]
LIBRARY = next((path for folder in FOLDERS if (path := folder / "libfaketimeMT.so.1").exists()), None)
WORKER = """
import asyncio, json, sys
from es_ttc.engine.connect import connect
from es_ttc.settings import EngineSettings
from es_ttc.enrichment.jobs.record import now
from es_ttc.enrichment.jobs.store import JobStore

async def main(url, index, owner):
    engine = await connect(EngineSettings(engine=url))
    lease = await JobStore(engine, index).leases.claim("job", 0, owner, 60)
    await engine.close()
    print(json.dumps({"clock": now().isoformat(), "claimed": lease is not None}))

asyncio.run(main(*sys.argv[1:]))
"""


def worker(url: str, index: str, owner: str, shift: str) -> tuple[datetime, bool]:
    """Let a process with a clock of its own claim the part of a job."""
    clock = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    command = [sys.executable, "-c", WORKER, url, index, owner]
    done = subprocess.run(command, env={**os.environ, **clock}, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    return datetime.fromisoformat(told["clock"]), told["claimed"]


@pytest.mark.skipif(
    LIBRARY is None and os.environ.get("CI") != "true", reason="no libfaketime (Debian's package faketime)"
)
async def test_workers_whose_clocks_differ_by_hours_take_no_part_twice(
    engine: Engine, engine_url: str, index_name: str
) -> None:
    index = f"{index_name}-jobs"
    store = JobStore(engine, index)
    await store.indices.prepare()
    clock, claimed = worker(engine_url, index, "slow", "-1h")
    assert now() - clock > timedelta(minutes=59)
    assert claimed
    assert await store.leases.claim("job", 0, "here", 60) is None
    clock, claimed = worker(engine_url, index, "fast", "+1h")
    assert clock - now() > timedelta(minutes=59)
    assert not claimed


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_lease_does_not_depend_on_the_clock_of_its_worker(
    engine: Engine, index_name: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    store = JobStore(engine, f"{index_name}-jobs")
    await store.indices.prepare()
    monkeypatch.setattr(leases, "now", lambda: now() + timedelta(hours=hours))
    lease = await store.leases.claim("job", 0, "here", 60)
    assert lease is not None
    monkeypatch.setattr(leases, "now", now)
    assert await store.leases.claim("job", 0, "there", 60) is None
    lease = await store.leases.renew(lease, "job", 60)
    monkeypatch.setattr(leases, "now", lambda: now() - timedelta(hours=hours))
    assert await store.leases.claim("job", 0, "there", 60) is None
    await store.leases.renew(lease, "job", 0)  # it is given back
    taken = await store.leases.claim("job", 0, "there", 0)
    assert taken is not None
    with pytest.raises(VersionConflict):
        await store.leases.renew(lease, "job", 60)
    assert await store.leases.claim("job", 0, "here", 60) is not None  # the other one's is over

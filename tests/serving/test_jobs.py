"""Jobs over HTTP: the task API's manners, one sentence for what is wrong, nothing without the engine's consent."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.serving.server import running_gateway
from es_ttc.settings import GatewaySettings
from tests.serving.client import Reply, call
from tests.support.gateway import gateway_to
from tests.support.jobs import JobSetup, connected, make_index, model_process

ON_ONE_ENGINE = True


@pytest.fixture
def job_setup(engine_url: str, index_name: str, tmp_path: Path) -> Iterator[JobSetup]:
    async def prepare() -> None:
        engine = await connected(engine_url)
        await make_index(engine, index_name, 3)
        await engine.close()

    asyncio.run(prepare())
    with model_process(tmp_path) as (model, _, __):
        yield JobSetup(engine_url, index_name, model, tmp_path)


@pytest.fixture
def gateway(job_setup: JobSetup, encoder: Encoder) -> Iterator[str]:
    told = job_setup.settings.model_dump(exclude={"cache_dir"})
    with running_gateway(GatewaySettings(**told, port=0), load=lambda _name, _folder: encoder) as url:
        yield url


def reason(reply: Reply, status: int) -> str:
    assert reply.status == status, reply.body
    found: dict[str, Any] = reply.json()
    assert found["status"] == status
    return str(found["error"]["reason"])


def test_a_job_is_submitted_shown_and_stopped(gateway: str, job_setup: JobSetup) -> None:
    assert call(gateway, "GET", "/_ttc/jobs").json() == {"jobs": []}
    submitted = call(gateway, "POST", "/_ttc/jobs", {"index": job_setup.index, "tau": 0.1, "budget": {"tokens": 10**6}})
    assert submitted.status == 200, submitted.body
    job = submitted.json()
    assert (job["state"], job["progress"]["pending"], job["plan"]["tau"]) == ("running", 3, 0.1)
    assert "text" not in job["plan"]
    one = f"/_ttc/jobs/{job['id']}"
    assert call(gateway, "GET", one).json()["id"] == job["id"]
    for change, state in (("_pause", "paused"), ("_resume", "running"), ("_cancel", "cancelled")):
        assert call(gateway, "POST", f"{one}/{change}").json()["state"] == state
    [listed] = call(gateway, "GET", "/_ttc/jobs?state=cancelled,paused").json()["jobs"]
    assert listed["id"] == job["id"]
    assert "cannot become running" in reason(call(gateway, "POST", f"{one}/_resume"), 400)


def test_jobs_invalid_requests_are_errors_in_the_engines_shape(
    gateway: str, job_setup: JobSetup, tmp_path: Path
) -> None:
    def submitted(**wanted: Any) -> Reply:
        return call(gateway, "POST", "/_ttc/jobs", {"index": job_setup.index, **wanted})

    assert reason(call(gateway, "GET", "/_ttc/jobs/none"), 404).startswith("there is no job [none]")
    assert "[tau]" in reason(submitted(tau=2), 400)
    assert "[taus]" in reason(submitted(taus=1), 400)
    assert "[_stop]" in reason(call(gateway, "POST", "/_ttc/jobs/none/_stop"), 400)
    assert "[running]" in reason(call(gateway, "GET", "/_ttc/jobs?state=runing"), 400)
    # A file of the gateway's machine is nothing that a request may name.
    secret = tmp_path / "secret.txt"
    secret.write_text("{{document}}")
    assert "there is no prompt" in reason(submitted(prompt=str(secret)), 400)
    assert "lacks its placeholder" in reason(submitted(prompt_text="Words, please."), 400)
    assert call(gateway, "GET", "/_ttc/jobs").json() == {"jobs": []}
    assert submitted(prompt_text="Words for {{document}}", prompt="mine").json()["plan"]["prompt"] == "mine"


def test_a_record_of_a_newer_release_does_not_stop_the_counts(
    engine_url: str, index_name: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_ttc.serving.admin.jobs.INTERVAL_SECONDS", 0.1)
    jobs = f"{index_name}-jobs"

    async def prepare() -> None:
        engine = await connected(engine_url)
        await JobStore(engine, jobs).indices.prepare()
        await engine.close()

    asyncio.run(prepare())
    record = {"kind": "encoding", "job": {"id": "encode-x", "index": "x", "status": "running", "name": {"newer": 1}}}
    assert call(engine_url, "PUT", f"/{jobs}/_doc/encode-x?refresh=true", record).status == 201
    with gateway_to(engine_url, encoder, jobs_index=jobs) as gateway:
        deadline = time.monotonic() + 20
        while "es_ttc_jobs_readable 1.0" not in call(gateway, "GET", "/_ttc/metrics").body.decode():
            assert time.monotonic() < deadline
            time.sleep(0.05)

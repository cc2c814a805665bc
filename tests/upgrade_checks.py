"""Indices and jobs survive an upgrade of their engine: rankings stay, writing and jobs go on. `make test-engines`.

The file is no `test_*.py`: the older engines need a Java or a download that `make test` does not.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.connect import connected
from es_ttc.engine.node import process
from es_ttc.engine.node.distribution import Distribution
from es_ttc.engine.node.opensearch import OpenSearchDistribution
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.record import JobStatus
from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.index.attach import fill_attached
from es_ttc.index.mappings.spec import IndexSpec, SpanGrid
from es_ttc.settings import EngineSettings, Settings
from tests.attach.conftest import FIELDS, MAPPING, SETTINGS, attach, put
from tests.attach.conftest import corpus as shop_corpus
from tests.serving.client import search
from tests.serving.conftest import make_index
from tests.support.elasticsearch import ElasticsearchDistribution
from tests.support.gateway import gateway_to
from tests.support.jobs import JobSetup, census, model_process, worker_at
from tests.support.jobs import make_index as make_enriched
from tests.support.shared_nodes import started

Ranking = dict[str, float]

UPGRADES: dict[str, tuple[Callable[[], Distribution], Callable[[], Distribution]]] = {
    "opensearch": (lambda: OpenSearchDistribution(version="2.19.1"), OpenSearchDistribution),
    "elasticsearch": (lambda: ElasticsearchDistribution(version="8.19.13"), ElasticsearchDistribution),
}
OWN, ATTACHED, ENRICHED = "upgraded", "upgraded-shop", "upgraded-corpus"
REQUEST_SECONDS = 120.0
WORK_SECONDS = 600.0
"""Generous: a new node on a busy machine is slow, and these checks are about what it does."""
COUNT = 60
MILK = "a cat that drinks milk"
TTC: dict[str, Any] = {"query_text": MILK, "on_error": "fail"}
KNN: dict[str, Any] = {"field": "ttc.vector", "query_text": MILK, "k": 10}
SEARCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "blend": (OWN, {"query": {"match": {"text": "cat"}}, "rescore": {"window_size": 20, "ttc": TTC}}),
    "spectral": (OWN, {"query": {"match_all": {}}, "rescore": {"ttc": {**TTC, "method": "spectral"}}}),
    "nnn": (OWN, {"knn": {**KNN, "ttc": {"method": "nnn", "params": {"exact": True}}}}),
    "spans": (OWN, {"knn": {**KNN, "ttc": {"method": "spectral"}}}),
    "attached blend": (ATTACHED, {"query": {"match": {"body": "cat"}}, "rescore": {"window_size": 20, "ttc": TTC}}),
    "attached knn": (ATTACHED, {"knn": {**KNN, "ttc": {"method": "dense"}}}),
}


@pytest.fixture(params=UPGRADES)
def product(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    process.stop(name_of(request.param), Settings().cache_dir, drop_data=True)


def name_of(product: str) -> str:
    return f"tests-upgrade-{product}"


def running(product: str, distribution: Distribution) -> AbstractContextManager[process.Node]:
    return started(distribution, name=name_of(product), keep_data=True)


def settings_of(url: str) -> EngineSettings:
    return EngineSettings(engine=url, request_timeout=REQUEST_SECONDS)


async def attach_shop(url: str, encoder: Encoder) -> None:
    async with connected(settings_of(url)) as engine:
        await engine.create_index(ATTACHED, {"settings": SETTINGS, "mappings": MAPPING})
        await put(engine, ATTACHED, shop_corpus())
        spec = IndexSpec(encoder.identity, text_fields=FIELDS, codec="float16", max_tokens=64)
        await attach(engine, ATTACHED, spec, encoder)


async def write_and_fill(url: str, encoder: Encoder) -> None:
    async with connected(settings_of(url)) as engine:
        await put(engine, ATTACHED, {"new": {"title": "The cat", "body": "Another cat that drinks milk."}})
        await fill_attached(engine, ATTACHED, encoder)


def rankings(url: str, encoder: Encoder) -> dict[str, Ranking]:
    found = {}
    with gateway_to(url, encoder, scoring_timeout_ms=50_000, request_timeout=REQUEST_SECONDS) as gateway:
        for name, (index, body) in SEARCHES.items():
            reply = search(gateway, index, body | {"size": 20})
            assert reply.status == 200, reply.body
            assert reply.json()["ttc"]["applied"] is True
            found[name] = dict(zip(reply.ids, reply.scores, strict=True))
    return found


def test_rankings_stay_and_writing_goes_on(product: str, encoder: Encoder) -> None:
    older, newer = UPGRADES[product]
    with running(product, older()) as node:
        make_index(node.url, OWN, encoder, codec="int8", spans=(SpanGrid(5, 3),))
        asyncio.run(attach_shop(node.url, encoder))
        before = rankings(node.url, encoder)
    with running(product, newer()) as node:
        after = rankings(node.url, encoder)
        asyncio.run(write_and_fill(node.url, encoder))
        then = rankings(node.url, encoder)
    for name, ranking in before.items():
        assert list(after[name]) == list(ranking), name
        assert after[name] == pytest.approx(ranking, abs=1e-4), name
    assert "new" in then["attached knn"]


async def submitted(job_setup: JobSetup) -> str:
    """Make an index of documents, and submit a job that enriches them."""
    async with connected(settings_of(job_setup.engine)) as engine:
        await make_enriched(engine, job_setup.index, COUNT)
        request = JobRequest(index=job_setup.index, tau=0.5, lanes=2)
        return (await submission.submit_job(engine, job_setup.settings, request)).job.id


async def worked_until(job_setup: JobSetup, job: str, enough: Callable[[JobStatus[Any]], bool]) -> JobStatus[Any]:
    """Wait for a job's progress."""
    async with connected(settings_of(job_setup.engine)) as engine:
        deadline = time.monotonic() + WORK_SECONDS
        while not enough(shown := await commands.shown_job(engine, job_setup.settings, job)):
            assert time.monotonic() < deadline, shown
            await asyncio.sleep(0.3)
        return shown


async def enriched(job_setup: JobSetup, job: str) -> None:
    """Check that every document is enriched, and counted, exactly once."""
    async with connected(settings_of(job_setup.engine)) as engine:
        found = await census(engine, job_setup, job)
        assert (found.documents, found.enriched, found.once, found.notes, found.doubled) == (*[COUNT] * 4, 0)


def test_a_job_that_is_half_done_goes_on(product: str, tmp_path: Path) -> None:
    older, newer = UPGRADES[product]
    with model_process(tmp_path, seconds=0.5) as (model, _, asked), EmbeddedRedis() as redis:

        def place_at(url: str) -> JobSetup:
            return JobSetup(url, ENRICHED, model, tmp_path, redis.url)

        with running(product, older()) as node:
            job = asyncio.run(submitted(place_at(node.url)))
            with worker_at(place_at(node.url)) as worker:
                asyncio.run(worked_until(place_at(node.url), job, lambda shown: shown.progress.done >= COUNT // 6))
                worker.kill()
            half = asyncio.run(worked_until(place_at(node.url), job, lambda _: True))
            assert (half.state, half.progress.done < COUNT) == ("running", True)
        before = len(asked.read_text().split())
        with running(product, newer()) as node:
            with worker_at(place_at(node.url)):
                ended = asyncio.run(worked_until(place_at(node.url), job, lambda shown: shown.state != "running"))
            assert (ended.state, ended.progress.done, ended.progress.failed) == ("completed", COUNT, 0)
            asyncio.run(enriched(place_at(node.url), job))
        assert len(asked.read_text().split()) - before < COUNT  # what was answered before is not asked again

"""Continuous enrichment of a followed index: its job waits for a model, and filters anew when the corpus has grown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.enrichment_work import is_continuous_due
from es_ttc.enrichment.jobs.following import EnrichmentOptions, follow, unfollow
from es_ttc.enrichment.jobs.record import Job
from es_ttc.enrichment.jobs.redis_server import EmbeddedRedis
from es_ttc.enrichment.jobs.store import JobStore
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.errors import ConfigurationError
from es_ttc.index.ingest import DeadLetterList, Documents, Inputs, ingest
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import IndexSpec
from tests.support.following import searches, settings_for
from tests.support.jobs import JobSetup, model_process
from tests.support.llm import scripted_model

pytestmark = pytest.mark.processors

ON_ONE_ENGINE = True


async def test_enrichment_job_without_a_model_is_paused_with_the_reason(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path, pipelines: Callable[..., Any]
) -> None:
    await create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0))
    settings = settings_for(engine, index_name)
    [made] = await follow(engine, settings, index_name, "later", EnrichmentOptions())
    assert made.enrichment is not None
    job = made.enrichment.job
    assert (made.enrichment.state, job.id) == ("paused", f"enrich-{index_name}")
    assert "ES_TTC_LLM_URL" in job.reason
    assert f"`es-ttc jobs resume {job.id}`" in job.reason
    with pytest.raises(ConfigurationError, match="language model"):
        await commands.resume(engine, settings, job.id)
    with model_process(tmp_path) as (model, _, __):
        job_setup = JobSetup(engine.url, index_name, model, tmp_path)
        resumed = await commands.resume(engine, job_setup.settings, job.id, tokens=1000)
        assert isinstance(resumed.job, Job)
        assert (resumed.state, resumed.job.plan.model, resumed.job.plan.prompt) == ("idle", "scripted", "base")
        [again] = await follow(engine, job_setup.settings, index_name, "later", EnrichmentOptions("base"))
        assert again.enrichment is not None
        assert (again.enrichment.job.budget.tokens, again.enrichment.job.refresh) == (1000, 0.5)
    [without] = await follow(engine, settings, index_name, "later")
    assert without.enrichment is None
    assert (await commands.shown_job(engine, settings, job.id)).state == "cancelled"
    await unfollow(engine, settings.jobs_index, index_name)


@pytest.mark.usefixtures("pipelines")
async def test_enrichment_of_a_grown_corpus_filters_phrases_anew(
    engine: Engine, index_name: str, spec: IndexSpec, encoder: Encoder, tmp_path: Path
) -> None:
    """A phrase that was rare becomes frequent; the model is not asked again. Afterwards nothing is searched."""
    await create_index(engine, index_name, spec, IndexOptions(shards=1, replicas=0))

    async def write(first: int, count: int, text: str) -> None:
        documents = [{"_id": f"d{number}", "title": f"Report {number}", "text": text} for number in range(first, count)]
        await ingest(engine, index_name, Inputs([Documents(documents)]), encoder, dead_letters=DeadLetterList())

    await write(0, 3, "The river rises.")
    await write(3, 4, "There is snow.")
    async with scripted_model(lambda _: "snow, flood") as model:
        with EmbeddedRedis() as own:
            redis = Redis.from_url(own.url)
            settings = JobSetup(engine.url, index_name, model.url, tmp_path).settings
            await follow(engine, settings, index_name, "later")
            await add_enrichment(engine, index_name)
            request = EnrichmentOptions().request(index_name)
            request = request.model_copy(update={"tau": 0.3, "lanes": 1})
            made = await submission.submit_continuous(engine, settings, request, f"enrich-{index_name}", frozenset())
            store = JobStore(engine, settings.jobs_index)

            async def sweep() -> Job:
                """Do what the sweeps of workers do, until none finds anything to do."""
                for _ in range(5):
                    job = await store.enrichment.get(made.job.id)
                    while await is_continuous_due(store, redis, job):
                        assert await take_turn(store, settings, None, job.id, 0) is TurnEnd.NOTHING_LEFT
                return await store.enrichment.get(made.job.id)

            async def phrases() -> dict[str, list[str]]:
                await engine.refresh(index_name)
                body = {"size": 100, "_source": False, "stored_fields": ["ttc.enrichment"]}
                hits = (await engine.search(index_name, body))["hits"]["hits"]
                return {hit["_id"]: hit.get("fields", {}).get("ttc.enrichment", []) for hit in hits}

            first = await sweep()
            assert (first.filtered, first.plan.refreshed, len(model.asked)) == (4, 0, 4)
            assert await phrases() == {"d3": ["flood"], **{f"d{number}": ["snow", "flood"] for number in range(3)}}
            queries = await searches(engine, index_name)
            assert not await is_continuous_due(store, redis, first)
            assert await searches(engine, index_name) == queries
            await write(4, 5, "There is snow.")
            assert (await sweep()).plan.refreshed == 0  # 5 documents are not yet half as many again
            await write(5, 6, "There is snow.")
            grown = await sweep()
            assert (grown.filtered, grown.plan.refreshed, len(model.asked)) == (6, 1, 6)
            assert await phrases() == {f"d{number}": ["flood"] for number in range(6)}
            assert await engine.count(index_name, {"term": {"ttc.enriched": grown.plan.key}}) == 6
            shown = await commands.shown_job(engine, settings, grown.id)
            assert (shown.state, shown.progress.done, shown.progress.pending) == ("idle", 6, 0)
            await redis.aclose()
    await unfollow(engine, settings.jobs_index, index_name)

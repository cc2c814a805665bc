"""Turns at jobs on real engines; the model's endpoint is a double, to answer, fail and be counted on demand."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from es_ttc.encoders.base import Encoder
from es_ttc.engine.protocol import Engine
from es_ttc.enrichment.jobs import commands, submission
from es_ttc.enrichment.jobs.enrichment_turn import take_turn
from es_ttc.enrichment.jobs.enrichment_work import finish
from es_ttc.enrichment.jobs.outcomes import Outcomes
from es_ttc.enrichment.jobs.record import Budget, Job, JobStatus, Price
from es_ttc.enrichment.jobs.store import JobStore, UnknownJob
from es_ttc.enrichment.jobs.stored_proposals import StoredProposals
from es_ttc.enrichment.jobs.submission import JobRequest
from es_ttc.enrichment.jobs.turn import TurnEnd
from es_ttc.enrichment.proposals.phrases import DropReason
from es_ttc.errors import ConfigurationError, InvalidRequest, LlmError, MissingFeature
from es_ttc.index.mappings.enrichment import add_enrichment
from es_ttc.index.mappings.index import IndexOptions, create_index
from es_ttc.index.mappings.spec import ENRICHMENT, IndexSpec
from es_ttc.settings import Settings
from tests.conftest import PRODUCTS
from tests.support.jobs import IDENTITY, JobSetup, census, document, fill, make_index
from tests.support.llm import ScriptedModel, scripted_model

ON_ONE_ENGINE = True
on_both = pytest.mark.parametrize("engine_url", PRODUCTS, indirect=True)

Answers = Callable[[str], Any]
COUNT = 12


def answer(question: str) -> str:
    number = re.findall(r"Observation number(\d+)", question)[-1]
    return f"flood gauge{number}, hydrology{number}, river, the"


class Desk:
    """A job's engine, index and model, and the calls that workers and people make."""

    def __init__(self, engine: Engine, job_setup: JobSetup, model: ScriptedModel) -> None:
        self.engine = engine
        self.job_setup = job_setup
        self.model = model
        self.index = job_setup.index

    @property
    def settings(self) -> Settings:
        return self.job_setup.settings

    async def submit(self, **wanted: Any) -> JobStatus[Any]:
        return await submission.submit_job(
            self.engine, self.settings, JobRequest(index=self.index, **{"tau": 0.5, "lanes": 1, **wanted})
        )

    @property
    def store(self) -> JobStore:
        return JobStore(self.engine, self.settings.jobs_index)

    async def turn(self, job: str, lane: int = 0) -> TurnEnd:
        return await take_turn(self.store, self.settings, None, job, lane)

    async def work(self, job: str, lanes: int = 1) -> JobStatus[Any]:
        """What workers do: turns at all parts, and the end."""
        for lane in range(lanes):
            while (end := await self.turn(job, lane)) is TurnEnd.TIME:
                pass
            assert end in (TurnEnd.NOTHING_LEFT, TurnEnd.NOT_DUE)
        await finish(self.store, job)
        return await self.shown(job)

    async def shown(self, job: str) -> JobStatus[Any]:
        return await commands.shown_job(self.engine, self.settings, job)

    async def asked_about(self, documents: int) -> None:
        """Wait until the model has been asked so many questions."""
        async with asyncio.timeout(30):
            while len(self.model.asked) < documents:  # noqa: ASYNC110 - the double tells nobody
                await asyncio.sleep(0.02)

    @property
    def asked(self) -> Counter[str]:
        """How often the model was asked about which document."""
        return Counter(re.findall(r"Observation number(\d+)", body["prompt"])[-1] for body in self.model.asked)


@asynccontextmanager
async def desk_of(
    engine: Engine, index: str, folder: Path, answers: Answers = answer, *, count: int = COUNT, seconds: float = 0.0
) -> AsyncIterator[Desk]:
    await make_index(engine, index, count)
    async with scripted_model(lambda body: answers(body["prompt"]), seconds=seconds) as model:
        yield Desk(engine, JobSetup(engine.url, index, model.url, folder), model)


@on_both
async def test_every_document_is_enriched_once_and_counted(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path) as desk:
        submitted = await desk.submit(lanes=3, parallel=4, price=Price(read=1e6, written=2e6))
        assert (submitted.state, submitted.progress.pending, submitted.job.total) == ("running", COUNT, COUNT)
        shown = await desk.work(submitted.job.id, lanes=3)
        counted = await census(engine, desk.job_setup, shown.job.id)
        assert (counted.documents, counted.enriched, counted.once, counted.notes) == (COUNT,) * 4
        assert desk.asked == Counter({str(number): 1 for number in range(COUNT)})
        progress = shown.progress
        assert (shown.state, progress.done, progress.pending, progress.failed) == ("completed", COUNT, 0, 0)
        assert (progress.phrases, progress.read, progress.written) == (2 * COUNT, 10 * COUNT, 5 * COUNT)
        assert progress.cost == pytest.approx(10 * COUNT + 2 * 5 * COUNT)
        # A search finds a document by words that it does not have, in a field that is not the user's.
        hits = (await engine.search(index_name, {"query": {"match_phrase": {ENRICHMENT: "flood gauges7"}}}))["hits"]
        assert hits["hits"] == []
        hits = (await engine.search(index_name, {"query": {"match_phrase": {ENRICHMENT: "floods gauge7"}}}))["hits"]
        assert [(hit["_id"], hit["_source"]) for hit in hits["hits"]] == [("d7", document(7))]
        assert await engine.count(index_name, {"match": {"text": "flood"}}) == 0


async def test_second_job_asks_nothing_about_enriched_documents(
    engine: Engine, index_name: str, tmp_path: Path
) -> None:
    async with desk_of(engine, index_name, tmp_path) as desk:
        first = await desk.submit()
        await desk.work(first.job.id)
        again = await desk.submit()
        assert (again.progress.pending, again.job.plan.key) == (0, first.job.plan.key)
        assert (await desk.work(again.job.id)).state == "completed"
        # A changed document is enriched again; one that was written again unchanged has its phrases for nothing.
        await engine.request("PUT", f"/{index_name}/_doc/d0", body={"text": "Observation number900 of the sea."})
        await engine.request("PUT", f"/{index_name}/_doc/d1", body={**document(1), "price": 3})
        await engine.refresh(index_name)
        third = await desk.submit()
        assert third.progress.pending == 2
        progress = (await desk.work(third.job.id)).progress
        assert (progress.done, progress.reused, progress.tokens) == (2, 1, 15)
        assert desk.asked["900"] == 1
        assert desk.asked["1"] == 1
        found = await engine.request("GET", f"/{index_name}/_doc/d1")
        assert found["_source"] == {**document(1), "price": 3}
        # Another tau is another plan, and no other question.
        other = await desk.submit(redo=True, tau=0.9)
        progress = (await desk.work(other.job.id)).progress
        assert (progress.done, progress.reused, progress.tokens) == (COUNT, COUNT, 0)
        # Another prompt is.
        own = tmp_path / "own.txt"
        own.write_text("Words for: {{document}}\n")
        reworded = await desk.submit(redo=True, prompt=str(own))
        assert reworded.job.plan.template.version != first.job.plan.template.version
        progress = (await desk.work(reworded.job.id)).progress
        assert (progress.done, progress.reused) == (COUNT, 0)


@on_both
async def test_a_document_that_changes_under_way_is_left_and_met_again(
    engine: Engine, index_name: str, tmp_path: Path
) -> None:
    async with desk_of(engine, index_name, tmp_path, count=3, seconds=3.0) as desk:
        desk.job_setup.more["ES_TTC_LLM_TIMEOUT"] = "30"
        job = (await desk.submit(parallel=3)).job.id
        turn = asyncio.create_task(desk.turn(job))
        await desk.asked_about(3)
        changed = {"text": "Observation number77 is new."}
        await engine.request("PUT", f"/{index_name}/_doc/d1", body=changed)
        await engine.request("PUT", f"/{index_name}/_doc/d2", body={**document(2), "seen": True})
        await engine.request("DELETE", f"/{index_name}/_doc/d0")
        await engine.refresh(index_name)  # else the write meets a conflict, and d2 waits for the next turn as well
        await turn
        await engine.refresh(index_name)
        shown = await desk.shown(job)
        assert (shown.progress.done, shown.progress.pending) == (1, 1)
        assert (await engine.request("GET", f"/{index_name}/_doc/d1"))["_source"] == changed
        assert (await engine.request("GET", f"/{index_name}/_doc/d2"))["_source"]["seen"] is True
        shown = await desk.work(job)
        assert (shown.state, shown.progress.done) == ("completed", 2)
        assert await engine.count(index_name) == 2


async def test_pause_takes_effect_within_one_document(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, seconds=0.3) as desk:
        job = (await desk.submit()).job.id
        turn = asyncio.create_task(desk.turn(job))
        await desk.asked_about(2)
        paused = await commands.pause(engine, desk.settings, job)
        begun = len(desk.model.asked)
        assert paused.state == "paused"
        assert await turn is TurnEnd.STOPPED
        assert len(desk.model.asked) <= begun + 1
        shown = await desk.shown(job)
        assert shown.progress.done == len(desk.model.asked)
        assert shown.progress.pending == COUNT - shown.progress.done
        assert await desk.turn(job) is TurnEnd.NOT_DUE
        assert (await commands.resume(engine, desk.settings, job)).state == "running"
        await desk.work(job)
        assert max(desk.asked.values()) == 1
        assert (await census(engine, desk.job_setup, job)).once == COUNT


async def test_cancel_leaves_whole_documents_only(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, seconds=0.1) as desk:
        job = (await desk.submit(parallel=2)).job.id
        turn = asyncio.create_task(desk.turn(job))
        await desk.asked_about(6)
        assert (await commands.cancel(engine, desk.settings, job)).state == "cancelled"
        assert await turn is TurnEnd.STOPPED
        counted = await census(engine, desk.job_setup, job)
        assert counted.documents == COUNT
        assert 0 < counted.enriched == counted.once == counted.notes < COUNT
        with pytest.raises(InvalidRequest, match=f"job .{job}. is cancelled and cannot become running"):
            await commands.resume(engine, desk.settings, job)
        with pytest.raises(InvalidRequest, match="cancelled"):
            await commands.retry(engine, desk.settings, job)
        paused = (await desk.submit()).job.id
        await commands.pause(engine, desk.settings, paused)
        await engine.delete_index(index_name)  # its jobs are still listed
        listed = await commands.listed(engine, desk.settings)
        assert [(status.job.id, status.state) for status in listed] == [(paused, "paused"), (job, "cancelled")]
        assert index_name in listed[0].progress.trouble


async def test_two_jobs_on_one_index_take_turns(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path) as desk:
        first = (await desk.submit()).job.id
        # What something else has written among the jobs holds none up.
        await desk.store.indices.put("other", {"kind": "job", "job": {"index": index_name, "status": "running"}})
        with pytest.raises(InvalidRequest, match=r"\[other\]"):
            await desk.store.enrichment.get("other")
        second = await desk.submit(redo=True, tau=0.9)
        assert (second.state, second.waits_for) == ("waiting", first)
        assert await desk.turn(second.job.id) is TurnEnd.NOT_DUE
        urgent = await desk.submit(priority=9)
        assert urgent.waits_for is None
        assert await desk.turn(first) is TurnEnd.NOT_DUE
        assert (await desk.work(urgent.job.id)).progress.done == COUNT
        assert (await desk.work(first)).progress.done == 0
        assert (await desk.work(second.job.id)).progress.done == COUNT
        assert max(desk.asked.values()) == 1


async def test_two_turns_at_one_part_do_not_meet(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, seconds=0.05) as desk:
        job = (await desk.submit()).job.id
        ends = await asyncio.gather(*(desk.turn(job) for _ in range(3)))
        assert sorted(ends) == sorted([TurnEnd.NOTHING_LEFT, TurnEnd.NOT_DUE, TurnEnd.NOT_DUE])
        assert max(desk.asked.values()) == 1


async def test_a_turn_that_dies_between_two_steps_loses_and_doubles_nothing(
    engine: Engine, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk_of(engine, index_name, tmp_path, count=6) as desk:
        job = (await desk.submit()).job.id
        for records, step in ((Outcomes, "put"), (StoredProposals, "get")):
            with monkeypatch.context() as patch:

                async def dies(*_: Any, **__: Any) -> None:
                    raise KeyboardInterrupt

                patch.setattr(records, step, dies)
                with pytest.raises(KeyboardInterrupt):
                    await desk.turn(job)
        await engine.refresh(index_name)
        # Four documents were written, and nobody noted it.
        assert (await desk.shown(job)).progress.done == 0
        shown = await desk.work(job)
        counted = await census(engine, desk.job_setup, job)
        assert (shown.state, counted.once, counted.notes, counted.doubled) == ("completed", 6, 6, 0)
        assert max(desk.asked.values()) == 1
        assert shown.progress.tokens == 6 * 15


async def test_a_spent_budget_pauses_the_job(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path) as desk:
        job = (await desk.submit(budget=Budget(tokens=50, cost=None))).job.id
        assert await desk.turn(job) is TurnEnd.STOPPED
        shown = await desk.shown(job)
        assert shown.state == "paused"
        assert "60 of 50" in shown.job.reason
        await commands.resume(engine, desk.settings, job, tokens=10_000)
        shown = await desk.work(job)
        assert (shown.state, shown.progress.done, shown.progress.tokens) == ("completed", COUNT, COUNT * 15)


async def test_failures_are_told_by_kind_and_retried(engine: Engine, index_name: str, tmp_path: Path) -> None:
    broken = True

    def answers(question: str) -> Any:
        number = int(re.findall(r"Observation number(\d+)", question)[-1])
        if broken and number == 3:
            return "... ---"
        if broken and number == 4:
            return 400
        return answer(question)

    async with desk_of(engine, index_name, tmp_path, answers) as desk:
        await engine.request("PUT", f"/{index_name}/_doc/empty", body={"title": " "})
        await engine.refresh(index_name)
        job = (await desk.submit()).job.id
        assert await desk.turn(job) is TurnEnd.NOTHING_LEFT
        assert not await finish(desk.store, job)
        progress = (await desk.shown(job)).progress
        assert (progress.done, progress.failed, progress.deferred, progress.skipped) == (COUNT - 2, 1, 1, 1)
        assert {each["kind"]: each["samples"][0]["document"] for each in progress.errors} == {
            "unreadable": "d3",
            "refused": "d4",
        }
        assert desk.asked["3"] == 2  # the answer was to be mended once
        assert desk.asked["4"] == 1
        broken = False
        assert (await commands.retry(engine, desk.settings, job)).progress.failed == 0
        shown = await desk.work(job)
        assert (shown.state, shown.progress.done, shown.progress.skipped) == ("completed", COUNT, 1)
        with pytest.raises(InvalidRequest, match="nothing to retry"):
            await commands.retry(engine, desk.settings, job)


async def test_a_model_that_fails_all_the_time_pauses_the_job(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, lambda _: "!!! ???") as desk:
        job = (await desk.submit(most_failures=5)).job.id
        assert await desk.turn(job) is TurnEnd.STOPPED
        shown = await desk.shown(job)
        assert "[unreadable]" in shown.job.reason
        assert len(desk.model.asked) < 2 * COUNT


async def test_an_endpoint_that_is_away_fails_no_document(engine: Engine, index_name: str, tmp_path: Path) -> None:
    away = True
    async with desk_of(engine, index_name, tmp_path, lambda question: 500 if away else answer(question)) as desk:
        job = (await desk.submit()).job.id
        assert await desk.turn(job) is TurnEnd.OUTAGE
        shown = await desk.shown(job)
        assert (shown.progress.failed, shown.progress.deferred, shown.progress.pending) == (0, 0, COUNT)
        assert "with 500" in shown.progress.trouble
        away = False
        shown = await desk.work(job)
        assert (shown.state, shown.progress.done, shown.progress.trouble) == ("completed", COUNT, "")


async def test_a_continuous_job_takes_what_arrives(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, count=2) as desk:
        job = (await desk.submit(continuous=True)).job.id
        assert (await desk.work(job)).state == "idle"
        await fill(engine, index_name, range(2, 5))
        assert (await desk.shown(job)).state == "running"
        shown = await desk.work(job)
        assert (shown.state, shown.progress.done, shown.progress.total) == ("idle", 5, 5)


async def test_a_dry_run_shows_and_writes_nothing(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path) as desk:
        wanted = JobRequest(index=index_name, tau=0.5, price=Price(read=1e6, written=0))
        trial = await submission.dry_run(engine, desk.settings, wanted, 4)
        assert len(trial.documents) == 4
        number = trial.documents[0].text.key[0][1:]
        assert trial.documents[0].filtered.kept == (f"flood gauge{number}", f"hydrology{number}")
        assert {one.text: one.reason.value for one in trial.documents[0].filtered.dropped} == {
            "river": "it stands in the text already",
            "the": "the analyzer leaves nothing of it",
        }
        assert (trial.pending, trial.read, trial.written, trial.cost) == (COUNT, 120, 60, 120.0)
        assert await commands.listed(engine, desk.settings) == []
        # What was answered is not asked again, neither by a second dry run nor by the job itself.
        again = await submission.dry_run(engine, desk.settings, wanted, 4)
        assert [one.filtered for one in again.documents] == [one.filtered for one in trial.documents]
        assert (again.pending, again.read, again.written, again.seconds) == (COUNT, 120, 60, 0)
        shown = await desk.work((await desk.submit()).job.id)
        assert (shown.progress.done, shown.progress.reused) == (COUNT, 4)
        assert max(desk.asked.values()) == 1


async def test_phrases_unlike_their_document_are_left_out_by_the_real_encoder(
    engine: Engine, index_name: str, tmp_path: Path, encoder: Encoder
) -> None:
    """As Doc2Query-- does; a trial shows which similarity which share of the phrases reaches."""
    await create_index(engine, index_name, IndexSpec(encoder.identity, tokens="none"), IndexOptions(shards=1))
    await add_enrichment(engine, index_name)
    heart = {"title": "Heart", "text": "Aspirin after a myocardial infarction."}
    await engine.request("PUT", f"/{index_name}/_doc/heart", params={"refresh": "true"}, body=heart)
    async with scripted_model(["cardiac drugs, football stadium, heart attack"]) as model:
        told = {"ES_TTC_ENCODER": "minilm@onnx", "ES_TTC_CACHE_DIR": str(Settings().cache_dir)}
        desk = Desk(engine, JobSetup(engine.url, index_name, model.url, tmp_path, more=told), model)
        wanted = JobRequest(index=index_name, tau=1.0, min_similarity=0.3)
        trial = await submission.dry_run(engine, desk.settings, wanted, 1)
        [tried] = trial.documents
        assert tried.filtered.kept == ("cardiac drugs", "heart attack")
        [left_out] = tried.filtered.dropped
        assert (left_out.text, left_out.reason) == ("football stadium", DropReason.UNLIKE)
        best, middle, worst = sorted(tried.filtered.similarities, reverse=True)
        assert [trial.reached(share) for share in (0.0, 0.5, 1.0)] == [best, middle, worst]
        assert left_out.similarity == worst < 0.3 <= middle
        whole = await desk.submit(tau=1.0)
        shown = await desk.work((await desk.submit(tau=1.0, min_similarity=0.3, priority=9)).job.id)
        assert (shown.state, shown.progress.phrases, len(model.asked)) == ("completed", 2, 1)
        assert shown.job.plan.key != whole.job.plan.key
        # Cosines of another encoder mean something else: a worker that has one says so, and the job waits for a person.
        other = f"{index_name}-other"
        await make_index(engine, other, 1)
        job = (
            await submission.submit_job(engine, desk.settings, JobRequest(index=other, lanes=1, min_similarity=0.3))
        ).job.id
        assert await desk.turn(job) is TurnEnd.STOPPED
        assert "ES_TTC_ENCODER" in (await desk.shown(job)).job.reason


async def test_submit_with_invalid_options_is_refused(engine: Engine, index_name: str, tmp_path: Path) -> None:
    async with desk_of(engine, index_name, tmp_path, count=1) as desk:
        with pytest.raises(UnknownJob, match=r"\[nothing\].*`es-ttc jobs list`"):
            await desk.shown("nothing")
        with pytest.raises(InvalidRequest, match=r"\[tau\]"):
            await desk.submit(tau=1.5)
        own = tmp_path / "own.txt"
        own.write_text("Write words.")
        with pytest.raises(ConfigurationError, match=r"\{\{document\}\}"):
            await desk.submit(prompt=str(own))
        with pytest.raises(ConfigurationError, match=r"\[claim\]"):
            await desk.submit(prompt="claim")
        with pytest.raises(InvalidRequest, match=r"\[query\]"):
            await desk.submit(query={"matches": {}})
        plain = f"{index_name}-plain"
        await create_index(engine, plain, IndexSpec(IDENTITY, tokens="none"))
        with pytest.raises(MissingFeature, match=f"add it with `es-ttc index enrichment {plain}`"):
            await submission.submit_job(engine, desk.settings, JobRequest(index=plain))
        with pytest.raises(InvalidRequest, match=r"\[nowhere\]"):
            await submission.submit_job(engine, desk.settings, JobRequest(index="nowhere"))
        away = desk.settings.model_copy(update={"llm_url": "http://127.0.0.1:9/v1"})
        with pytest.raises(LlmError, match="cannot be reached"):
            await submission.submit_job(engine, away, JobRequest(index=index_name))
        assert await commands.listed(engine, desk.settings) == []


async def test_a_worker_with_another_model_says_so_and_pays_nothing(
    engine: Engine, index_name: str, tmp_path: Path
) -> None:
    async with desk_of(engine, index_name, tmp_path, count=2) as desk:
        job = (await desk.submit()).job.id
        other = desk.settings.model_copy(update={"llm_model": "another"})
        assert await take_turn(desk.store, other, None, job, 0) is TurnEnd.OUTAGE
        assert "the job asks [scripted] by [completions], and this worker is set to [another]" in (
            (await desk.shown(job)).progress.trouble
        )
        assert not desk.model.asked


@pytest.mark.llm
async def test_a_real_model_is_asked(engine: Engine, index_name: str, tmp_path: Path, llm_url: str) -> None:
    await make_index(engine, index_name, 0)
    sentence = {"title": "Heart attacks", "text": "Aspirin lowers the risk of a second myocardial infarction."}
    await engine.request("PUT", f"/{index_name}/_doc/d", params={"refresh": "true"}, body=sentence)
    job_setup = JobSetup(engine.url, index_name, llm_url, tmp_path, more={"ES_TTC_LLM_TIMEOUT": "120"})
    wanted = JobRequest(index=index_name, tau=1.0, lanes=1, answer_tokens=32)
    submitted = await submission.submit_job(engine, job_setup.settings, wanted)
    store = JobStore(engine, job_setup.settings.jobs_index)
    while (end := await take_turn(store, job_setup.settings, None, submitted.job.id, 0)) is TurnEnd.TIME:
        pass
    assert end is TurnEnd.NOTHING_LEFT
    await finish(store, submitted.job.id)
    shown = await commands.shown_job(engine, job_setup.settings, submitted.job.id)
    assert isinstance(shown.job, Job)
    assert (shown.state, shown.job.plan.model, shown.job.plan.prompt) == ("completed", "gemma-3-270m", "base")
    assert shown.progress.done == 1
    assert shown.progress.read > 100
    assert shown.progress.written > 0
